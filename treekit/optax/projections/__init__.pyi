"""The names of `optax.projections`, for type checkers. Made by `make stubs`."""

from optax.projections import projection_box as projection_box
from optax.projections import projection_halfspace as projection_halfspace
from optax.projections import projection_hypercube as projection_hypercube
from optax.projections import projection_hyperplane as projection_hyperplane
from optax.projections import projection_l1_ball as projection_l1_ball
from optax.projections import projection_l1_sphere as projection_l1_sphere
from optax.projections import projection_l2_ball as projection_l2_ball
from optax.projections import projection_l2_sphere as projection_l2_sphere
from optax.projections import projection_linf_ball as projection_linf_ball
from optax.projections import projection_non_negative as projection_non_negative
from optax.projections import projection_simplex as projection_simplex
from optax.projections import projection_vector as projection_vector
