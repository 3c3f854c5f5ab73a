"""Does a field hold what its annotation says?

- `hints`: which fields has a class, and what is the annotation of each, without aliases and type variables?
  `quoted`: what does a name in quotes mean?
- `sizes`: to which sizes are the names in shapes bound? All that treekit uses of the inside of jaxtyping is here.
- `fields`: `check_types`, for all nodes of a tree
- `signatures`: `Typed` and `Batched`, for the arguments of a function
"""
