"""What is a leaf, and what is a node?

- `types`: which names do types have?
- `jax`: how do type checkers see JAX, and which of its names do only some releases have?
- `dtype`: which dtype does a leaf have, and may it be cast to another?
- `bounds`: can an array of a dtype hold a value?
- `memory`: who owns the memory of an array?
- `predicates`: is it an array, a parameter, a function, or a tree that can be called?
- `functions`: what does a function refer to?
- `tree`: which children does a node have? `flax`: is it of Flax? `states`: is it the state of an optimizer?
- `layouts`: what does treekit store in a class that it registers? Its readers need not import `_node`.
- `context`: a context variable that is set while something runs
"""
