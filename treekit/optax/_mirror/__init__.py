"""Which function does any other name of Optax give?

- `lookup`: its own, or one at the boundary
- `tree_functions`: its functions on trees, for trees with other leaves than numbers
"""
