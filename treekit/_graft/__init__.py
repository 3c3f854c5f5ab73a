"""Carry the values of one tree over to a tree of another structure.

- `graft`: the public function; what is the value of a leaf, converted, resized and cast?
- `names`: which leaves does a tree have, which names does `rename` give them, and which match by name?
- `states`: which leaves of optimizer states match?
- `report`: what became of each leaf, and what accepts those that are left?
"""
