"""Functions that JAX has traced, whatever they compute; nothing here is about optimizers.

- `in_place`: how is such a function run once or not at all, in the memory of what it changes?
"""
