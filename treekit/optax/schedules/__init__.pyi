"""The names of `optax.schedules`, for type checkers. Made by `make stubs`."""

from typing import Final

from optax.schedules import InjectHyperparamsState as InjectHyperparamsState
from optax.schedules import InjectStatefulHyperparamsState as InjectStatefulHyperparamsState
from optax.schedules import Schedule as Schedule
from optax.schedules import StatefulSchedule as StatefulSchedule
from optax.schedules import WrappedSchedule as WrappedSchedule
from optax.schedules import constant_schedule as constant_schedule
from optax.schedules import cosine_decay_schedule as cosine_decay_schedule
from optax.schedules import cosine_onecycle_schedule as cosine_onecycle_schedule
from optax.schedules import exponential_decay as exponential_decay
from optax.schedules import join_schedules as join_schedules
from optax.schedules import linear_onecycle_schedule as linear_onecycle_schedule
from optax.schedules import linear_schedule as linear_schedule
from optax.schedules import piecewise_constant_schedule as piecewise_constant_schedule
from optax.schedules import piecewise_interpolate_schedule as piecewise_interpolate_schedule
from optax.schedules import polynomial_schedule as polynomial_schedule
from optax.schedules import sgdr_schedule as sgdr_schedule
from optax.schedules import warmup_constant_schedule as warmup_constant_schedule
from optax.schedules import warmup_cosine_decay_schedule as warmup_cosine_decay_schedule
from optax.schedules import warmup_exponential_decay_schedule as warmup_exponential_decay_schedule

from treekit.optax._wrappers import inject as _inject
from treekit.optax._wrappers.inject import inject_hyperparams as inject_hyperparams

inject_stateful_hyperparams: Final = _inject.inject_hyperparams
