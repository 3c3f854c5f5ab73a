"""Creating a node, apart from rebuilding it."""
