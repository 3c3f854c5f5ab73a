"""How is it written?

- `describe`: a leaf, a type or a value in a message; `lists`: some of several names
- `table`: rows in a terminal, and in a notebook; `columns`: how wide is each?
"""
