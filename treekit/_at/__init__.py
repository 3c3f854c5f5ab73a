"""`tree_at` and `tree_find`: `locate` finds the nodes that a function returns, `select` those of a name or a class."""
