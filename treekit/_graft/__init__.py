"""Carry the values of one tree over to a tree of another structure.

- `graft`: the public function; in which order do the others run?
- `states`, `leaf`, `names`: which leaves does a tree have, and to which optimizer states do they belong?
- `rename`: which names do old leaves get from the user, and which are stacked or unstacked?
- `match`: which old leaf in an optimizer state does a new one match?
- `lengths`: which lists have another length, so that the user is warned?
- `values`: what is the value of a match, converted, resized and cast?
- `report`: what became of each leaf?
"""
