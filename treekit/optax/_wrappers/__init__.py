"""Optax's wrappers, and our own, each in the file of its name.

`masking` has those that select leaves: `filtered`, `masked`, `partition`, `freeze`. `round_position` belongs to
`multi_steps`.
"""
