"""Functions that JAX has traced, whatever they compute; nothing here is about optimizers.

- `in_place`: how is such a function run once or not at all, in the memory of what it changes?
- `evaluate`: what is its result if some arrays are not known, and how is it computed without compiling it?
"""
