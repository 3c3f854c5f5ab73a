"""What Optax does not have, one file each. It is built on the kernel next to it, which imports nothing from here.

- `average`: what is the average of the params?
- `eight_bits`, `precision`: in which dtype is an array of a state stored, and how is it rounded?
- `hyperparams`: which hyperparameters has a state, and how are they set?
- `monitor`, `scale_by_tree`: measurements of the updates; a rate for each leaf
- `summary`: what does a step do to each leaf?
- `update`: an average, or a copy, of the params without an optimizer
"""
