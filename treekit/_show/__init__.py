"""What is in a tree?

- `summary`: a table of names, shapes, dtypes and sizes
- `shared`: which leaves share memory?
"""
