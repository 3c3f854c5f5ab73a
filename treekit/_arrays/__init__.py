"""What is computed with the arrays of a whole model?

- `map`: a map that preserves dtypes
- `cast`: casts to the dtypes of the leaves of a tree, with errors that name leaves
- `shapes`: a check that shapes are the same, or can be broadcast
- `round`: casts to fewer bits, at random
- `stack`: one model from several, several from one, one vector from all
- `members`: the entries of one array
- `scan`: a loop over them
"""
