"""Functions that take an optimizer, its state or its params: `apply_updates`, `apply_gradients`, `summary` and others.

`probe_step` belongs to `summary`.
"""
