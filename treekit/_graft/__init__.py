"""Which value goes where in a tree of another structure?

- `graft`: the public function. The others are its passes, in this order; none changes what another has found.
- `arguments`: what do the arguments say about each leaf?
- `leaves`: which leaves does a tree have?
- `rename`: which name does a pair give an old leaf, and where in an optimizer state does that go?
- `sources`: which old values are there, by the names that `rename` gives them?
- `matches`: which old value does a new leaf get, by its name or by its place in a state?
- `left`: what is left of both trees, and has each `rename` led to a leaf?
- `values`: what is the value of a leaf, converted, resized and cast?
- `report`: what became of each leaf?
- `list_lengths`: which lists have more entries in one of the trees?
- `strict`: which leaves are left, and which arguments accept them?

`state_dict` writes the arrays of a tree by name, which `graft` takes back.
"""
