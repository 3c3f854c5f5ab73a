"""How is a class made a node?

- `decorator`: `node` and `field`; `register`: the same for a class that exists; `factory`: can JAX rebuild what a
  function creates?
- `allowed`: may a class be a node?
- `create`: what runs when an instance is created, once? `copy_arguments`: which of its arguments are copied first?
  `captured`: which instances do its functions capture? `creation`: what do its fields say of it?
- `pickling`: how is an instance copied and pickled, without its code?
- `field_names`: which fields does a class have, and has an instance them all, and no others?
- `generate`: how is an instance flattened, and rebuilt without its code? `layout`: how is a class registered?
- `static`: which values may be static, and how are equal ones shared?
- `hashable_array`: an array that is one
- `replace`: a copy with other values
"""
