"""`tree_summary`: `summary` walks through a tree, `measure` computes statistics, and `table` is what users see."""
