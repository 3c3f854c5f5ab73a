"""Functions that take an optimizer, its state or its params: `apply_updates`, `apply_gradients` and others."""
