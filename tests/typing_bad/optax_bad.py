"""What the checkers must refuse in the use of treekit.optax."""

import jax
import optax

from treekit import optax as tko
from treekit.testing import check_transformation


class Model:
    weight: jax.Array


def bad(model: Model, updates: Model, tx: optax.GradientTransformation) -> None:
    tko.masked(tx)  # E: call-arg
    tko.masked(tx, True, mask_compatible=True)  # E: call-arg
    tko.masked(tx, True).initialise(model)  # E: attr-defined
    tko.filtered(3)  # E: arg-type
    tko.partition([tx], "a")  # E: arg-type
    tko.dtype_preserving(tx, rounding="up")  # E: call-overload
    tko.MultiSteps(tx)  # E: call-arg
    tko.MultiSteps(tx, "3")  # E: arg-type
    count: str = tko.MultiSteps(tx, 3).init(model)  # E: assignment
    tko.lbfgs(memory=3)  # E: call-arg
    tko.inject_hyperparams(0.1)  # E: arg-type
    tko.apply_if_finite(tx)  # E: call-arg
    tko.apply_updates(model, updates).bias  # E: attr-defined
    other: dict[str, int] = tko.apply_updates(model, updates)  # E: arg-type
    grad: Model = tko.value_and_grad_from_state(len)(model, state=())  # E: assignment
    tko.inject_hyperparams(tko.adam, only=3)  # E: arg-type
    rate: str = tko.get_hyperparams(model)  # E: assignment
    tko.set_hyperparams(model, 0.1)  # E: arg-type
    tko.set_hyperparams(model, learning_rate=0.1).bias  # E: attr-defined
    tko.params_ema("slow")  # E: arg-type
    tko.get_ema(model, model).bias  # E: attr-defined
    tko.scale_by_tree()  # E: call-arg
    tko.summary(model, model)  # E: arg-type
    tko.summary(tx, model).columns  # E: attr-defined
    tko.sgd("fast")  # E: arg-type
    tko.adamw(1e-3, wieght_decay=0.1)  # E: call-arg
    tko.chain(tx, 3)  # E: arg-type
    tko.contrib.muon()  # E: call-arg
    tko.transforms.zero_nans(tx)  # E: call-arg
    plan: int = tko.constant_schedule(1.0)  # E: assignment
    tko.adamm(1e-3)  # E: attr-defined
    tko.contrib.muonn(1e-3)  # E: attr-defined
    tko.masked(tko.adam, True)  # E: arg-type
    tko.masked(True, tx)  # E: arg-type
    tko.filtered(tko.adam)  # E: arg-type
    masked, adam = tko.masked(tx, True), tko.adam(1e-3)
    state = masked.init(model)
    masked.update(state, updates, model)  # E: arg-type
    masked.update(updates)  # E: call-arg
    adam.update(updates, state, model)  # E: arg-type
    adam.init(model)[0].muu  # E: attr-defined
    state.inner_states  # E: attr-defined
    check_transformation(model, tx)  # E: arg-type
