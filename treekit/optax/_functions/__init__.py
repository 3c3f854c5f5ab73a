"""Functions that take an optimizer, its state or its params: `apply_updates`, `apply_gradients`, `summary` and others.

`probe_step` and `take_rounds` belong to `summary`: what a step does, and steps taken.
"""
