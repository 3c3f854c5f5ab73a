"""What is a leaf called, and which names does a pattern match?

- `key_path`: the name of a leaf, and of a child
- `patterns`: which names does a pattern match? `pattern_set`: which of many patterns match a name?
- `wildcards`: where in a name is what each wildcard takes?
- `cover`: which few globs match some names, and none of the others?
- `pattern_errors`: what is wrong with a pattern, and which names are similar?
"""
