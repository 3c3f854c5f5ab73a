"""Which leaves, or which nodes, are meant?

- `filter`: those that satisfy a predicate, or a tree of bools
- `find`: those with a name or of a class (`by_name`, `walk`), or those that a function returns (`by_function`)
- `selection`: what `find` returns; `at` replaces it by other nodes
- `masks`: mask functions, which `&`, `|` and `~` combine; `paths`: masks and labels by name and by class; `trainable`:
  a mask by what classes declare
- `tree_spec`: what all of these are, functions of a whole tree
- `spec`: is an argument a tree, or a function of the params that returns one?
- `path_errors`: which patterns and classes of masks and labels are errors; `advice`: what errors say about classes and
  fields
"""
