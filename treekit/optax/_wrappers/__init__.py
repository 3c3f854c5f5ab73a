"""Optax's wrappers and functions that need more than the boundary, under Optax's names.

Which leaves, and which steps?

- `select`: on which leaves does a transformation run?
- `specs`: what does a tree, or a function of the params, such as rates, say of the params that a core sees?
- `masks_and_labels`: which leaves do a mask and labels select?
- `multi_steps`: does this step run, or does it only accumulate?
- `rounds`: how does a step count in its round?
- `weighted_sum`: what is accumulated in a round?
- `in_place`: where are the updates of a round?
- `conditional`: does this step run, or is it held?
- `run_if`: how is a step held under `jit`?
- `traced`: how is a step traced only once?

How is a factory of Optax called?

- `parameters`: what does a parameter of a factory say of its arguments?
- `call`: what does Optax understand of its arguments, such as a link of a `chain`?
- `numbers`: is an argument the number that its parameter takes?
- `inject`: which hyperparameters are in the state?
- `kinds`: is an argument a number, a schedule, or passed on?

What else has a function of its own?

- `apply`: how are updates added to params?
- `map_params`: which leaves of a state belong to params?
- `lbfgs`: how does a line search run on a model?
- `lookahead`: how does an optimizer run on a pair of models?
- `monitor`: what is measured of the updates?
- `update`: an average of the params, or a copy
- `schedule_free`: the params to evaluate with
- `state_values`: which values does a state have for the params?
- `tree_set`: how are numbers of a state replaced?
- `releases`: what does not every release of Optax have?
"""
