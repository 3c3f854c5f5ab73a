"""What every other folder uses, and which question each file answers. It imports nothing else of treekit.

- `types`: which names do types have?
- `jax`: how do type checkers see JAX?
- `dtype`: which dtype does a leaf have, and may it be cast to another?
- `predicates`: what is a leaf: an array, a parameter, a traced value, a function, or a tree that can be called?
- `states`: what is the state of an optimizer?
- `tree`: which children does a node have, and what are its leaves?
- `flax`: is it of Flax?
- `key_path`: what is a leaf called?
- `patterns`: which names does a pattern match?
- `pattern_set`: which of many patterns match a name?
- `pattern_errors`: what is wrong with a pattern?
- `exact`: when are two values the same?
- `describe`: how is a value written in a message?
- `table`: how are rows written in a terminal, and in a notebook?
- `layouts`: what does treekit store in a class that it registers? It stands alone, so that its readers do not import
  `_node`.
- `declared`: which leaves does a class declare not to be trained?
- `missing`: what does Python say about a name that treekit does not have? It stands alone, since each of its names
  would be one of treekit. To look for the name, it imports the public modules.
"""
