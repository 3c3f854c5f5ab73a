"""`tree_at`: `locate` finds the nodes that a function selects, and `at` replaces them."""
