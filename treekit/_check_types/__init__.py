"""Compare the fields of nodes with their annotations."""
