"""Weights that PyTorch has written give the same outputs in Flax and in a node; docs/guides/load.md has Equinox.

`data/torch.safetensors` has two models of PyTorch 2.13 after five steps of Adam on random inputs, with their inputs and
outputs in evaluation mode:

- `conv`: `fc(relu(down(relu(bn1(conv1(x))))).mean((2, 3)))`, of `conv1 = Conv2d(3, 4, 3)`, `bn1 = BatchNorm2d(4)`,
  `down = Sequential(Conv2d(4, 4, 3, stride=2, padding=1, bias=False), BatchNorm2d(4))` and `fc = Linear(4, 4)`.
- `text`: `wte = Embedding(11, 8)`, a list `h` of three blocks, and `lm_head`, whose weight is that of `wte`. A block
  adds to its input `attn(ln_1(x))` and then `mlp(ln_2(x))`, of `LayerNorm(8)`, `MultiheadAttention(8, 2,
  batch_first=True)` and `mlp = Sequential(Linear(8, 8), GELU(), Linear(8, 8))`.

As `safetensors.torch.save_model` does, it has the tied weight once: `text.model.lm_head.weight` is not in it.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

import treekit as tk
from tests.releases import nnx_list

FILE = safetensors.numpy.load_file(Path(__file__).parents[1] / "data" / "torch.safetensors")


def part(start: str) -> dict[str, Any]:
    return {name.removeprefix(start): x for name, x in FILE.items() if name.startswith(start)}


CONV, TEXT = part("conv.model."), part("text.model.")


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------- convolutions and batch norms: Flax NNX


class ConvNNX(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv1 = nnx.Conv(3, 4, (3, 3), padding="VALID", rngs=rngs)
        self.bn1 = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        conv = nnx.Conv(4, 4, (3, 3), strides=2, padding=1, use_bias=False, rngs=rngs)
        self.down = nnx_list([conv, nnx.BatchNorm(4, momentum=0.9, rngs=rngs)])
        self.fc = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = nnx.relu(self.bn1(self.conv1(x)))
        return self.fc(nnx.relu(self.down[1](self.down[0](x))).mean((1, 2)))


NNX = {
    "bn1.weight": "bn1.scale",
    "down.1.weight": "down.1.scale",
    "**.running_*": "**.*",
    "**.num_batches_tracked": None,
    "**.weight": "**.kernel",
}


def test_convolutions_and_batch_norms_in_nnx() -> None:
    convert: dict[str, Any] = {"fc.kernel": np.transpose, "**.kernel": lambda x: x.transpose(2, 3, 1, 0)}
    model, report = tk.graft(ConvNNX(), CONV, rename=NNX, convert=convert)
    assert [row.path for row in report.dropped] == ["bn1.num_batches_tracked", "down.1.num_batches_tracked"]
    evaluated: Any = model
    evaluated.eval()
    close(evaluated(FILE["conv.images"].transpose(0, 2, 3, 1)), FILE["conv.out"])


# ------------------------------------------------------------ fused and tied arrays, a list of layers: a node, for scan


def dense(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def norm(p: Any, x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["weight"] + p["bias"]


def block(p: Any, x: Any) -> Any:
    y = norm(p["ln_1"], x)
    q, k, v = (dense(p[name], y).reshape(*x.shape[:-1], 2, 4) for name in "qkv")
    x = x + dense(p["out"], jax.nn.dot_product_attention(q, k, v).reshape(x.shape))
    return x + dense(p["mlp"]["2"], jax.nn.gelu(dense(p["mlp"]["0"], norm(p["ln_2"], x)), approximate=False))


@tk.node
class Text:
    embed: Any
    blocks: Any
    head: Any

    def __call__(self, tokens: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, p: (block(p, x), None), self.embed[tokens], self.blocks)
        return x @ self.head


TEXT_RENAME: dict[str, Any] = {
    "wte.weight": ["embed", "head"],
    "h.*.attn.in_proj_weight": [f"blocks.{x}.kernel" for x in "qkv"],
    "h.*.attn.in_proj_bias": [f"blocks.{x}.bias" for x in "qkv"],
    "h.*.attn.out_proj.weight": "blocks.out.kernel",
    "h.*.attn.out_proj.bias": "blocks.out.bias",
    "h.*.mlp.**.weight": "blocks.mlp.**.kernel",
    "h.*.**": "blocks.**",
}
TEXT_CONVERT: dict[str, Any] = {
    "blocks.q.*": lambda x: x[:8].T,
    "blocks.k.*": lambda x: x[8:16].T,
    "blocks.v.*": lambda x: x[16:].T,
    "**.kernel": np.transpose,
    "head": np.transpose,
}


def test_fused_and_tied_arrays_and_layers_for_scan() -> None:
    of_norm = {"weight": jnp.zeros(8), "bias": jnp.zeros(8)}
    of_dense = {"kernel": jnp.zeros((8, 8)), "bias": jnp.zeros(8)}
    layer: Any = {"ln_1": of_norm, "ln_2": of_norm, "mlp": {"0": of_dense, "2": of_dense}}
    layer |= dict.fromkeys([*"qkv", "out"], of_dense)
    new = Text(jnp.zeros((11, 8)), tk.tree_stack([layer] * 3), jnp.zeros((8, 11)))
    model, report = tk.graft(new, TEXT, rename=TEXT_RENAME, convert=TEXT_CONVERT)
    assert not report.fresh and not report.dropped
    with jax.numpy_rank_promotion("allow"):
        close(model(FILE["text.tokens"]), FILE["text.out"])
