"""A training program with treekit, as a user with types would write it: `python -m tests.typing_good.program`."""
