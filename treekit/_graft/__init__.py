"""Carry the values of one tree over to a tree of another structure.

- `graft`: the public function, which runs these passes.
- `arguments`: what do the arguments say about each leaf?
- `leaves`: which leaves does a tree have?
- `names`: which names does `rename` give old values, and which of them match by name?
- `states`: which leaves of optimizer states match?
- `values`: what is the value of a leaf, converted, resized and cast?
- `report`: what became of each leaf?
- `advice`: what accepts the leaves that are left?
"""
