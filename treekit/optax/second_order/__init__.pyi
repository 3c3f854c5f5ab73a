"""The names of `optax.second_order`, for type checkers. Made by `make stubs`."""

from optax.second_order import fisher_diag as fisher_diag
from optax.second_order import hessian_diag as hessian_diag
from optax.second_order import hvp as hvp
