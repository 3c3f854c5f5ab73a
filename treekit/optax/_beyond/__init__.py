"""What Optax does not have, one file each. Nothing else imports from here.

- `average`: what is the average of the params?
- `eight_bits`, `precision`: in which dtype is an array of a state stored, and how is it rounded?
- `hyperparams`: which hyperparameters has a state, and how are they set?
- `scale_by_tree`: a rate for each leaf
- `summary`: what does a step do to each leaf?
"""
