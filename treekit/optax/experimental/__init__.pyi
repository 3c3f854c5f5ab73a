"""The names of `optax.experimental`, for type checkers. Made by `make stubs`."""

from optax.experimental import aggregating as aggregating
