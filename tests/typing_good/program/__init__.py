"""A training program with treekit, as a user with types would write it: `python -m tests.typing_good.program`.

Each `reveal_type` is an expression whose type tests/test_typing.py counts, if it is Any.
"""
