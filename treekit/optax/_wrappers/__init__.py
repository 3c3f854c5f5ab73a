"""Optax's wrappers and functions that need more than the boundary, under Optax's names.

- `select`: on which leaves does it run? `masks_and_labels`: which leaves do a mask and labels mean?
- `multi_steps`, `conditional`: does this step run, or is it held? `rounds`: how does a step count in its round?
  `in_place`: where are the updates of a round? `run_if`: how is a step held under `jit`? `traced`: how is it traced
  only once?
- `parameters`: what does a parameter of a factory say? `call`: what does Optax understand of its arguments, such as
  a link of a `chain`?
- `inject`: hyperparameters in the state; `kinds`: is an argument a number, a schedule, or passed on?
- `apply`: how are updates added to params? `lbfgs`: how does a line search run on a model? `lookahead`: on a pair?
- `monitor`: measurements of the updates; `update`: an average of the params, or a copy; `schedule_free`: the params to
  evaluate with; `tree_set`: other numbers in a state; `state_values`: which values does a state have for the params?
- `releases`: what does not every release of Optax have?
"""
