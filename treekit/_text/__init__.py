"""How is it written?

- `describe`: a leaf, a type or a value in a message; `lists`: some of several names
- `arguments`: what is wrong with an argument, where several functions say so
- `table`: rows in a terminal, and in a notebook; `columns`: how wide is each?
"""
