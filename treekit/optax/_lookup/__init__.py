"""Optax's own functions, wrapped when they are looked up.

- `wrap_optax`: which of Optax's functions are ours, which are wrapped, and how?
- `tree_functions`: which functions of Optax compute on trees?
- `chain`: what is the whole step of a chain?
"""
