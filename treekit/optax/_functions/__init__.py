"""Functions that take an optimizer, its state or its params: `apply_updates`, `apply_gradients`, `summary` and others.

`probe_step`, `take_rounds` and `evaluate` belong to `summary`: what a step does, steps taken, and steps traced.
`eight_bits` converts the 8-bit codes in a state to numbers and back.
"""
