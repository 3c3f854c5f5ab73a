"""Does a field hold what its annotation says?

- `hints`: what does an annotation mean, with its strings and type variables resolved?
- `sizes`: to which sizes are the names in shapes bound? All that treekit uses of the inside of jaxtyping is here.
- `fields`: `check_types`, for all nodes of a tree
- `signatures`: `Typed` and `Batched`, for the arguments of a function
"""
