"""Make classes pytree nodes, which are created by their own code and rebuilt without it."""
