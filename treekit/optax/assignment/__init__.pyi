"""The names of `optax.assignment`, for type checkers. Made by `make stubs`."""

from optax.assignment import base_hungarian_algorithm as base_hungarian_algorithm
from optax.assignment import hungarian_algorithm as hungarian_algorithm
