"""The names of `optax.microbatching`, for type checkers. Made by `make stubs`."""

from optax.microbatching import AccumulationType as AccumulationType
from optax.microbatching import Accumulator as Accumulator
from optax.microbatching import micro_grad as micro_grad
from optax.microbatching import micro_vmap as micro_vmap
from optax.microbatching import microbatch as microbatch
from optax.microbatching import reshape_batch_axis as reshape_batch_axis
