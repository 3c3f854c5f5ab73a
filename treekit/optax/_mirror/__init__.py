"""Which names does `treekit.optax` have, and which function does each give?

- `modules`: those of the installed Optax, and no other, also in its submodules
- `ours`: a wrapper of `_wrappers`
- `lookup`: else Optax's own function, or that at the boundary
- `tree_functions`: Optax's functions on trees, for trees with other leaves than numbers
"""
