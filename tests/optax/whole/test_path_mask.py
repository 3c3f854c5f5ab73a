"""path_mask and path_labels wherever Optax takes a mask or labels, on every kind of model."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.optax import cases
from tests.releases import nnx_list
from tests.trees import Twig
from treekit import optax as tko
from treekit import training


def as_dict() -> Any:
    return {"layers": [{"weight": jnp.ones((2, 2)), "bias": jnp.ones(2)} for _ in range(2)]}


class Net(nnx.Module):
    def __init__(self) -> None:
        self.layers = nnx_list([nnx.Linear(3, 2, rngs=nnx.Rngs(0))])
        self.norm = nnx.LayerNorm(2, rngs=nnx.Rngs(0))


class Norm(eqx.Module):
    weight: Any
    rate: Any
    f: Any = jax.nn.relu


@pytest.mark.parametrize("library", [optax, tko], ids=["optax", "treekit.optax"])
def test_inside_a_partition_what_is_not_shown_does_not_count(library: Any) -> None:
    """`**.bias` matches nothing that the inner transformation of "head" is shown."""
    params = {"body": as_dict(), "head": {"weight": jnp.ones(2)}}
    zeros = jax.tree.map(jnp.zeros_like, params)
    inner = library.adamw(1.0, weight_decay=0.5, mask=~tk.path_mask("body.**.bias", re.compile("body.*weight")))
    for labels in (tk.path_labels({"body.**": "body", "head.**": "head"}), {"body": "body", "head": "head"}):
        tx = library.partition({"body": inner, "head": inner}, labels)
        updates = jax.jit(lambda grads, tx=tx: tx.update(grads, tx.init(params), params)[0])(zeros)
        np.testing.assert_array_equal(updates["head"]["weight"], [-0.5, -0.5])
        assert all(not np.any(x) for x in jax.tree.leaves(updates["body"]))


@pytest.mark.parametrize("pattern", ["**.bias", "layers.*.bias", re.compile(r".*s\..*\.bias")])
def test_in_flax_s_optimizer_a_variable_and_its_value_have_one_path(pattern: Any) -> None:
    model: Any = Net()
    labels = tk.path_labels({pattern: "bias"}, default="other")
    optimizer = tko.partition({"bias": tko.sgd(0.5), "other": tko.set_to_zero()}, labels)
    trainer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)  # shows variables to init, and their values to update
    before = model.layers[0].kernel[...]
    trainer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    bias = model.layers[0].bias
    assert bias is not None and bias[...].tolist() == [-0.5, -0.5]
    assert (model.layers[0].kernel[...] == before).all()


def ones_of(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.ones_like(x) if tk.is_inexact_array(x) else x, tree)


LAYER = Norm(jnp.ones(2), 0.5)  # a Python number, which Optax's functions see as an array or None
# What is named, by its class or by a pattern, in params of each kind.
NAMED: dict[str, tuple[Any, Any]] = {
    "class of eqx": (Norm, {"a": LAYER, "b": [LAYER, jnp.ones(2)], "name": "x"}),
    "class of nnx": (nnx.LayerNorm, ones_of(Net())),
    "class of node": (Twig, {"a": Twig(jnp.ones(2), (jnp.ones(2), jax.nn.relu)), "b": jnp.ones(2)}),
    "eqx": ("**.bias", ones_of(cases.model())),
    "dict": ("**.bias", as_dict()),
    "node": ("**.bias", Twig(as_dict(), jax.nn.relu)),
    "nnx": ("**.bias", ones_of(nnx.split(Net())[1])),
}
WRAPPED: dict[str, Callable[[Any, Any, Any], Any]] = {  # for a mask that is True in norms, labels, and rates
    "masked": lambda mask, labels, rates: tko.chain(tko.masked(tko.scale(0.0), mask), tko.scale(-1.0)),
    "selective_transform": lambda mask, labels, rates: tko.transforms.selective_transform(
        tko.sgd(1.0), freeze_mask=mask
    ),
    "freeze": lambda mask, labels, rates: tko.chain(tko.transforms.freeze(mask), tko.scale(-1.0)),
    "partition": lambda mask, labels, rates: tko.partition({"norm": tko.set_to_zero(), "rest": tko.sgd(1.0)}, labels),
    "MultiSteps": lambda mask, labels, rates: tko.MultiSteps(tko.chain(tko.transforms.freeze(mask), tko.sgd(1.0)), 1),
    "injected": lambda mask, labels, rates: tko.chain(
        tko.scale(0.0), tko.inject_hyperparams(tko.adamw)(1.0, weight_decay=1.0, mask=~mask)
    ),
    "nested": lambda mask, labels, rates: tko.partition(
        {"norm": tko.transforms.freeze(mask), "rest": tko.chain(tko.transforms.freeze(mask), tko.sgd(1.0))}, labels
    ),
    "rates": lambda mask, labels, rates: tko.chain(tko.sgd(1.0), training.scale_by_tree(rates)),
}


@pytest.mark.parametrize("kind", [kind for kind in NAMED if kind != "class of nnx"])  # init takes no module of NNX
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_what_is_named_is_masked_labelled_or_scaled_everywhere(wrapper: str, kind: str) -> None:
    named, raw_params = NAMED[kind]
    labels, rates = (tk.path_labels({named: x}, default=y) for x, y in (("norm", "rest"), (0.0, 1.0)))
    tx: Any = WRAPPED[wrapper](tk.path_mask(named), labels, rates)
    grads = tk.filter(raw_params, tk.is_inexact_array)
    for params, wrap in ((raw_params, lambda f: f), (tk.filter_arrays(raw_params), eqx.filter_jit)):
        updates, _ = wrap(tx.update)(grads, tx.init(params), params)
        leaves = (jax.tree.leaves(t, is_leaf=lambda x: x is None) for t in (updates, grads, tk.path_mask(named)(grads)))
        for x, leaf, is_named in zip(*leaves, strict=True):
            if leaf is not None:
                wanted = np.full(leaf.shape, 0.0 if is_named else -1.0)
                np.testing.assert_array_equal(np.zeros(leaf.shape) if x is None else x, wanted)


# What is named, and the fact of the error where it is not there.
ABSENT: dict[str, tuple[Any, str]] = {"pattern": ("**.bais", "bais"), "class": (Norm, "Norm")}


@pytest.mark.parametrize("kind", ABSENT)
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_what_is_not_there_raises_everywhere_unless_told(wrapper: str, kind: str) -> None:
    named, fact = ABSENT[kind]
    for strict in (True, False):
        labels, rates = (
            tk.path_labels({named: x}, default=y, strict=strict) for x, y in (("norm", "rest"), (0.0, 1.0))
        )
        tx: Any = WRAPPED[wrapper](tk.path_mask(named, strict=strict), labels, rates)
        with pytest.raises(ValueError, match=fact) if strict else contextlib.nullcontext():
            tx.init(cases.model())
