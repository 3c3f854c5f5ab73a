"""Where do two trees differ?

- `exact`: when are two values the same?
- `pairs`: where do their nodes differ?
- `prefix`: is one a prefix of the other, and what does the error say if not?
- `nodes`: which tree is the same in the nodes of another?
- `leaves`: in what do two leaves differ? `elements`: in which numbers do two arrays, and by how much?
- `differences`: what is said of that, and how is it printed?
- `structure`: where do they differ, values aside?
- `diff`: `tree_diff` and `assert_trees_same`, which list all of it
"""
