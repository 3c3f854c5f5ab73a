"""Fields of nodes, compared with their annotations."""
