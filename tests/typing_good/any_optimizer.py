# pyright: strict
"""`TransformationLike` annotates every optimizer, of treekit, of plain Optax or your own. See tests/test_typing.py."""

import jax
import optax as plain

from treekit import optax
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
    params, state = optax.apply_gradients(optimizer, params, state, params)
    check_transformation(optimizer, params)
    optax.summary(optimizer, params)
    return params


def wrapped(optimizer: TransformationLike) -> list[TransformationLike]:
    return [
        optax.apply_if_finite(optimizer, 3),
        optax.chain(optax.clip(1.0), optimizer),
        optax.dtype_preserving(optimizer),
        optax.filtered(optimizer),
        optax.masked(optimizer, True),
        optax.MultiSteps(optimizer, 2),
        optax.named_chain(("only", optimizer)),
        optax.partition({"all": optimizer}, "all"),
    ]


def every(params: Params) -> None:
    train(optax.adam(1e-3), params)
    train(optax.lbfgs(), params)
    train(optax.inject_hyperparams(optax.adam)(1e-3), params)
    train(optax.MultiSteps(optax.adam(1e-3), 2), params)
    train(plain.adam(1e-3), params)
    train(plain.inject_hyperparams(plain.adam)(1e-3), params)
    train(plain.MultiSteps(plain.adam(1e-3), 2), params)
    train(Own(), params)
    for optimizer in wrapped(plain.adam(1e-3)) + wrapped(optax.adam(1e-3)) + wrapped(Own()):
        train(optimizer, params)
