"""What every other folder uses, and which question each file answers. It imports nothing else of treekit.

- `types`, `jax`: which names do types have, and how do type checkers see JAX?
- `dtype`: which dtype does a leaf have, and may it be cast to another?
- `predicates`: what is a leaf: an array, a parameter, a traced value?
- `tree`: which children does a node have, and what are its leaves?
- `key_path`: what is a leaf's name?
- `patterns`: which names does a pattern match, and which names are nearest to it?
- `pattern_set`: which of many patterns match a name, or a name that continues it?
- `describe`: how is a value written in a message?
- `states`: is a named tuple the state of an optimizer?
- `missing`: what does Python say about a name that treekit does not have?
- `callable`: is an object a function, or a tree that can be called?
"""
