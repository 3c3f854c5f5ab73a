"""Values of one tree, carried over to a tree of another structure."""
