"""The names of `optax.perturbations`, for type checkers. Made by `make stubs`."""

from optax.perturbations import Gumbel as Gumbel
from optax.perturbations import Normal as Normal
from optax.perturbations import make_perturbed_fun as make_perturbed_fun
