"""Optax's own functions, wrapped when they are looked up, and the lists of names that type checkers read.

- `wrap_optax`: which of Optax's functions are ours, which are wrapped, and how?
- `tree_functions`: which functions of Optax compute on trees?
- `chain`: what is the whole step of a chain?
- `names*`, `factory_types`: lists for type checkers, written by `python -m tests.optax_names`
"""
