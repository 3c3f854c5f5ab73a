# pyright: strict
"""`TransformationLike` annotates every optimizer, of treekit, of plain Optax or your own. See tests/test_typing.py."""

import jax
import optax as plain

from treekit import optax, training
from treekit.testing import check_transformation
from treekit.typing import TransformationLike

Params = dict[str, jax.Array]


class Own:
    def init(self, params: object) -> int:
        return 0

    def update(self, updates: Params, state: int, params: object = None) -> tuple[Params, int]:
        return updates, state


def train(optimizer: TransformationLike, params: Params) -> Params:
    state = optimizer.init(params)
    updates, state = optimizer.update(params, state, params)
    params = optax.apply_updates(params, updates)
    params, state = training.apply_gradients(optimizer, params, state, params)
    check_transformation(optimizer, params)
    training.summary(optimizer, params)
    return params


ALL: list[TransformationLike] = [
    optax.adam(1e-3),
    optax.lbfgs(),
    optax.inject_hyperparams(optax.adam)(1e-3),
    optax.MultiSteps(optax.adam(1e-3), 2),
    plain.adam(1e-3),
    plain.inject_hyperparams(plain.adam)(1e-3),
    plain.MultiSteps(plain.adam(1e-3), 2),
    Own(),
]


def every(params: Params) -> None:
    for optimizer in ALL:
        train(optimizer, params)
        train(optax.chain(optax.clip(1.0), optimizer), params)
        train(optax.MultiSteps(optimizer, 2), params)
        train(optax.partition({"all": optimizer}, "all"), params)
