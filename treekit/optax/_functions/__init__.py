"""Functions that take an optimizer, its state or its params: `apply_updates`, `apply_gradients` and others.

`eight_bits` converts the 8-bit codes in a state to numbers and back.
"""
