"""What is in a tree?

- `summary`: a table of names, shapes, dtypes and sizes
- `statistics`: mean, standard deviation, and numbers that are not finite
- `shared`: which leaves share memory?
"""
