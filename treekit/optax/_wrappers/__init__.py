"""Optax's wrappers, and our own, each in the file of its name.

`masking` has those that select leaves: `filtered`, `masked`, `partition`, `freeze`. `round_position` belongs to
`multi_steps`. Four belong to `dtype_preserving`: `state_dtype` decides in which
dtype each array is stored, `rounding_state` widens and rounds, `nesting` refuses one inside another, and `signs` finds
out what becomes negative.
"""
