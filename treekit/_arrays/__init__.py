"""What is computed with the arrays of a whole model?

- `map`: a map that preserves dtypes
- `round`: casts to fewer bits, at random
- `stack`: one model from several, several from one, one vector from all; `scan`: a loop over them
"""
