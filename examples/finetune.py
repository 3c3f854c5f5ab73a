"""Fine-tune a deployed model (ONNX): Magika learns one more type of file, and an account of what it forgets.

    make demo EXAMPLE=finetune, or: python examples/finetune.py

Magika (PyPI: `magika`) tells the type of a file by its bytes: 214 types. It does not distinguish Python sources from
stubs (.py, .pyi). Here it learns to, offline, from the files of the packages that this Python has.

1. The weights are read from the ONNX file of the wheel, and `treekit.graft` puts them by name into a Flax NNX model.
2. Model and ONNX Runtime must give the same probabilities on real files.
3. The head grows by a class. `training.summary` shows what the optimizer does to each array, before it does it.
4. The model is trained with accumulated gradients and an average of the params. In the middle of a round the run is
   saved with safetensors and resumed, bit for bit.
5. On the files of other packages: what was learned, what was forgotten, and the same with plain Optax, and what each
   had to write.

With --bf16, params and state are stored in bf16: with treekit they are rounded stochastically, with plain Optax to
nearest. A picture is written next to this file.
"""

import _program

# isort: split

import argparse
import collections
import dataclasses
import importlib.metadata
import inspect
import json
import random
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import magika
import numpy as np
import onnx
import onnxruntime
import optax as plain_optax
from flax import nnx
from jax import Array
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from safetensors.flax import load_file, save_file
from tqdm import tqdm

import treekit
from treekit import optax, training

FILES = 300  # at most, of each of the first two kinds, to train with; and two thirds of that to test with
EACH = 10  # at most, of each other suffix
MICRO_BATCH = 16
ACCUMULATE = 4  # micro-batches in a round, after which the optimizer takes a step
ROUNDS = 16
RATE, BODY = 1e-3, 0.1  # the learning rate of the head; that of the layers below it is a tenth
DECAY = 0.01
AVERAGE = 0.8  # the decay of the average of the params
KINDS = ("stubs (.pyi)", "sources (.py)", "other files")
PICTURE = _program.picture_of(__file__)
MAGIKA, WRITTEN_FOR = f"magika {importlib.metadata.version('magika')}", "1.0.3, for which this program was written"


# --- The model, as the graph of the ONNX file has it ------------------------------------------------------------------


class Network(nnx.Module):
    """Magika's network. It computes in f32, whatever the dtype of its params."""

    def __init__(self, labels: int, rngs: nnx.Rngs, param_dtype: Any = jnp.float32) -> None:
        options: Any = {"dtype": jnp.float32, "param_dtype": param_dtype, "rngs": rngs}
        self.first = nnx.Linear(257, 64, **options)
        self.positions = nnx.LayerNorm(512, **options)
        self.conv = nnx.Conv(256, 512, kernel_size=5, padding="VALID", **options)
        self.norm = nnx.LayerNorm(512, **options)
        self.head = nnx.Linear(512, labels, **options)

    def __call__(self, tokens: Array) -> Array:
        """The logits [n, labels] of files that are given as [n, 2048] bytes, where 256 stands for no byte."""
        bias: Any = self.first.bias  # to type checkers, it may be None
        x = self.first.kernel[tokens] + bias  # a row of the kernel is its product with a one-hot
        x = nnx.gelu(x.astype(jnp.float32)).reshape(-1, 512, 256)  # four bytes side by side are one position
        x = self.positions(x.swapaxes(1, 2)).swapaxes(1, 2)  # over the positions, where most norms are over features
        x = nnx.gelu(self.conv(x))
        return self.head(self.norm(x.max(axis=1)))


SCOPE = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/"
RENAME = {
    "jax2tf_get_logits_/Const:0": "first.kernel",
    SCOPE + "Dense_0/Reshape:0": "first.bias",
    SCOPE + "LayerNorm_0/Reshape_2:0": "positions.scale",
    SCOPE + "LayerNorm_0/Reshape_3:0": "positions.bias",
    SCOPE + "Conv_0/transpose_3:0": "conv.kernel",
    "const_fold_opt__209": "conv.bias",  # a name that an optimizer of graphs made up
    SCOPE + "LayerNorm_1/Reshape_2:0": "norm.scale",
    SCOPE + "LayerNorm_1/Reshape_3:0": "norm.bias",
    "jax2tf_get_logits_/Const_24:0": "head.kernel",
    SCOPE + "Dense_1/Reshape:0": "head.bias",
}
CONVERT: dict[str, Callable[[Any], Any]] = {
    "*.bias": np.ravel,  # all of them, and the scales, have axes of length 1
    "*.scale": np.ravel,
    "conv.kernel": lambda x: x[..., 0].transpose(2, 1, 0),  # from [out, in, width, 1] to [width, in, out]
}


@dataclasses.dataclass
class Deployed:
    """What is in the wheel: its configuration, and the path of its ONNX file."""

    detector: magika.Magika
    config: dict[str, Any]
    path: Path

    @property
    def labels(self) -> list[str]:
        labels: list[str] = self.config["target_labels_space"]
        return labels


def open_wheel() -> Deployed:
    detector = magika.Magika()
    folder = Path(magika.__file__).parent / "models" / detector.get_model_name()
    config = json.loads((folder / "config.min.json").read_text(encoding="utf-8"))
    if config["mid_size"] or config["use_inputs_at_offsets"] or config["beg_size"] + config["end_size"] != 2048:
        sys.exit(f"{MAGIKA} reads other bytes of a file than {WRITTEN_FOR}: {config}")
    return Deployed(detector, config, folder / "model.onnx")


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The weights by name. The other constants of the graph are integers, such as shapes, and single numbers."""
    arrays = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(str(path)).graph.initializer}
    return {name: x for name, x in arrays.items() if x.dtype == np.float32 and x.size > 1}


def load_model(deployed: Deployed) -> Network:
    """The model with magika's weights. A name that only one side has, or another shape, is an error."""
    model = Network(len(deployed.labels), nnx.Rngs(0))
    try:
        model, report = treekit.graft(model, read_weights(deployed.path), rename=RENAME, convert=CONVERT)
    except ValueError as error:
        sys.exit(f"{MAGIKA} has other weights than {WRITTEN_FOR}.\n{error}")
    print(report)
    return model


def grow(model: Network, python: int, dtype: Any) -> Network:
    """The model with one more class at the end, which starts as a copy of the class "python"."""

    def add_class(_: Any, old: Array) -> Array:
        return jnp.concatenate([old, old[..., python, None]], axis=-1)

    larger = Network(model.head.out_features + 1, nnx.Rngs(0), dtype)
    grown, _ = treekit.graft(larger, model, resize={"head.*": add_class}, cast=True)
    return grown


# --- The files --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Files:
    """Files of some packages, those of one kind after those of another."""

    packages: list[str]  # of each file
    paths: list[Path]
    kinds: np.ndarray  # [n], indices into KINDS
    tokens: np.ndarray  # [n, 2048], what the model sees of them

    def show(self, title: str) -> None:
        counts = [f"{np.sum(self.kinds == kind)} {name}" for kind, name in enumerate(KINDS)]
        show(f"{title}: {', '.join(counts)}, of {len(set(self.packages))} packages.")
        stubs = collections.Counter(name for name, kind in zip(self.packages, self.kinds, strict=True) if kind == 0)
        show(f"  The stubs are of {', '.join(f'{name} ({count})' for name, count in stubs.most_common())}.")


def show(text: str) -> None:
    """Print a sentence in lines of at most 80 columns."""
    print(textwrap.fill(text, 80, subsequent_indent="    "))


def find_files(folder: Path, config: dict[str, Any], count: int) -> tuple[Files, Files]:
    """Files to train with and files to test with. No package has files in both."""
    packages = by_package(folder, config["min_file_size_for_dl"])
    order = sorted(packages, key=lambda name: (-len(packages[name][".pyi"]), name))
    test = {name: packages.pop(name) for name in order[1::3]}  # one of each three that have about as many stubs
    return (
        choose(packages, count, config, f"{folder} to train with"),
        choose(test, count * 2 // 3, config, f"{folder} to test with"),
    )


def by_package(folder: Path, smallest: int) -> dict[str, dict[str, list[Path]]]:
    """The files of each package in a folder, by suffix: those that are large enough for magika to ask its model."""
    packages: dict[str, dict[str, list[Path]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    seen = set[tuple[str, ...]]()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if parts[0].endswith("-info") or not path.is_file() or path.stat().st_size < smallest:
            continue
        # Some packages have copies of others: pip of what it imports, mypy and pyright of the same stubs. So of files
        # whose folders and names are the same, only the first counts.
        if parts[-2:] not in seen:
            packages[parts[0].partition(".")[0].removesuffix("-stubs")][path.suffix].append(path)
        seen.add(parts[-2:])
    return packages


def choose(packages: dict[str, dict[str, list[Path]]], count: int, config: dict[str, Any], where: str) -> Files:
    """At most `count` stubs and as many sources, and some files of each other suffix: the same ones each time."""
    generator = random.Random(0)
    chosen: list[list[tuple[str, Path]]] = [[] for _ in KINDS]
    for suffix in sorted(set[str]().union(*packages.values())):
        found = [(name, path) for name, suffixes in sorted(packages.items()) for path in suffixes.get(suffix, [])]
        kind = {".pyi": 0, ".py": 1}.get(suffix, 2)
        chosen[kind] += generator.sample(found, min(len(found), EACH if kind == 2 else count))
    if missing := [kind for kind, of_kind in zip(KINDS, chosen, strict=True) if not of_kind]:
        sys.exit(
            f"There are no {missing[0]} in {where}. At least two packages have to have files of each kind: install "
            "some that do, such as numpy and matplotlib, or name another folder of packages: --folder=…"
        )
    names, paths = zip(*(pair for of_kind in chosen for pair in of_kind), strict=True)
    kinds = np.repeat(np.arange(len(KINDS)), [len(of_kind) for of_kind in chosen])
    return Files(list(names), list(paths), kinds, np.stack([read_tokens(path, config) for path in paths]))


def read_tokens(path: Path, config: dict[str, Any]) -> np.ndarray:
    """Bytes of the beginning of a file and of its end, without white space there, as magika's own code reads them."""
    with path.open("rb") as file:
        size = min(config["block_size"], path.stat().st_size)
        beginning = file.read(size).lstrip()[: config["beg_size"]]
        file.seek(-size, 2)
        end = file.read(size).rstrip()[-config["end_size"] :]
    tokens = np.full(config["beg_size"] + config["end_size"], config["padding_token"], np.int32)
    tokens[: len(beginning)] = np.frombuffer(beginning, np.uint8)
    tokens[len(tokens) - len(end) :] = np.frombuffer(end, np.uint8)
    return tokens


# --- What the model says ----------------------------------------------------------------------------------------------


@nnx.jit
def probabilities(model: Network, tokens: Array) -> Array:
    """[n, labels], a few files at a time, since the activations of each are megabytes."""
    result: Array = jax.lax.map(lambda file: jax.nn.softmax(model(file[None])[0]), tokens, batch_size=32)
    return result


def answers(model: Network, tokens: np.ndarray) -> np.ndarray:
    """The index of the most probable label of each file."""
    found: np.ndarray = np.argmax(np.asarray(probabilities(model, jnp.asarray(tokens))), axis=-1)
    return found


def check(model: Network, deployed: Deployed, files: Files) -> np.ndarray:
    """Magika's answer for each file. The model has to compute what ONNX Runtime computes, and see what magika sees."""
    session = onnxruntime.InferenceSession(str(deployed.path))

    def run(tokens: np.ndarray) -> np.ndarray:
        (result,) = session.run(["target_label"], {"bytes": tokens})
        return np.asarray(result)

    ours, theirs = np.asarray(probabilities(model, jnp.asarray(files.tokens))), run(files.tokens)
    one_by_one = np.concatenate([run(file[None]) for file in files.tokens])  # as magika does
    own: np.ndarray = np.argmax(one_by_one, axis=-1)
    # Where most bytes are equal or missing, features hardly vary over the positions. The first norm divides by how much
    # they vary, so it magnifies rounding errors, and ONNX Runtime does not repeat itself there.
    difference, its_own = np.abs(ours - theirs).max(axis=1), np.abs(one_by_one - theirs).max(axis=1)
    stable = its_own < 1e-6
    same, others = (difference.max(initial=0, where=some) for some in (stable, ~stable))
    unstable = int(np.sum(~stable))
    print(f"\nONNX Runtime and the model, the largest difference of a probability, {len(own)} files:")
    print(f"  {stable.sum()} files: {same:.1e}")
    print(f"  {unstable} files, for which ONNX Runtime differs from itself: {others:.1e}")
    print(f"    (it from itself, alone and in a batch of all files: {its_own.max():.1e})")
    print(f"Files that get another answer: {np.sum(ours.argmax(axis=1) != own)}")
    if not stable.any() or same > 1e-4:
        sys.exit(f"{MAGIKA} computes something else from its weights than {WRITTEN_FOR}.")
    few = range(0, len(own), 10)
    named = [deployed.detector.identify_path(files.paths[i]).dl.label for i in few]
    if named != [deployed.labels[own[i]] for i in few]:
        sys.exit(f"{MAGIKA} has other answers than its model for the bytes that it should read.")
    return own


# --- The training -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Task:
    """What both runs share: the structure of the model, the examples and how many micro-batches there are."""

    graph: nnx.GraphDef[Network]
    tokens: Array  # [n, 2048]
    targets: Array  # [n, labels], the probabilities that the model should give
    rounds: int

    def loss(self, params: Any, rows: Array) -> Array:
        logits = nnx.merge(self.graph, params)(self.tokens[rows])
        losses: Array = optax.losses.kl_divergence(jax.nn.log_softmax(logits), self.targets[rows])
        return jnp.mean(losses)

    def sample(self, key: Array) -> Array:
        return jax.random.randint(key, (MICRO_BATCH,), 0, len(self.tokens))


def create_task(grown: Network, original: Network, train: Files, python: int, rounds: int) -> Task:
    """Stubs are of the new class, sources are Python, and all others are what magika says: so it forgets less."""
    targets = np.zeros((len(train.tokens), grown.head.out_features), np.float32)
    targets[train.kinds == 0, -1] = 1
    targets[train.kinds == 1, python] = 1
    targets[train.kinds == 2, :-1] = probabilities(original, jnp.asarray(train.tokens[train.kinds == 2]))
    return Task(nnx.graphdef(grown), jnp.asarray(train.tokens), jnp.asarray(targets), rounds)


@treekit.node
class Run:
    """All that a run needs to go on: the next key determines the files of all micro-batches to come."""

    params: nnx.State[Any, Any]
    state: optax.OptState
    key: Array


def create_optimizer(rounds: int, bf16: bool) -> optax.MultiSteps:
    kernels = treekit.path_mask("*.kernel")
    rates = treekit.path_labels({"head.*": 1.0}, default=BODY)
    schedule = optax.cosine_decay_schedule(RATE, rounds)
    adamw = optax.adamw(schedule, weight_decay=DECAY, mask=kernels)
    tx = optax.chain(adamw, training.scale_by_tree(rates))
    tx = optax.selective_transform(tx, freeze_mask=treekit.path_mask("first.*"))
    if bf16:
        tx = training.store_state(tx, jnp.bfloat16, rounding="stochastic")
    tx = optax.chain(tx, training.params_ema(AVERAGE))
    return optax.MultiSteps(tx, every_k_schedule=ACCUMULATE)


def create_step(task: Task, optimizer: optax.MultiSteps) -> Callable[[Run], tuple[Run, Array]]:
    @jax.jit
    def step(run: Run) -> tuple[Run, Array]:
        key, files_key, rounding_key = jax.random.split(run.key, 3)
        value, grads = jax.value_and_grad(task.loss)(run.params, task.sample(files_key))
        # Only params in 16 bits are rounded, and need this key.
        params, state = training.apply_gradients(optimizer, grads, run.state, run.params, key=rounding_key)
        return Run(params, state, key), value

    return step


def save(run: Run, path: Path) -> None:
    save_file(treekit.to_state_dict(run) | {"key": jax.random.key_data(run.key)}, path)


def restore(path: Path, start: Callable[[], Run]) -> Run:
    """A run from a file. What `start` would return says what has to be in it."""
    run: Run
    run, _ = treekit.graft(jax.eval_shape(start), load_file(path))
    return run


def fine_tune(
    task: Task, optimizer: optax.MultiSteps, params: nnx.State[Any, Any], losses: list[float]
) -> tuple[Network, int]:
    """The average of the params of a run that is stopped on the way, and after how many micro-batches it was."""
    step = create_step(task, optimizer)

    def start() -> Run:
        return Run(params, optimizer.init(params), jax.random.key(0))

    def go_on(run: Run, count: int) -> Run:
        for _ in range(count):
            run, value = step(run)
            losses.append(float(value))
            progress.update()
            progress.set_postfix_str(f"loss {np.mean(losses[-4 * ACCUMULATE :]):.2f}")
        return run

    total, rest = task.rounds * ACCUMULATE, ACCUMULATE // 2  # of the round in which the run is stopped
    stop = task.rounds // 2 * ACCUMULATE + ACCUMULATE - rest
    with tqdm(total=total, desc="treekit", ncols=80, unit="micro-batch", disable=None) as progress:
        run = go_on(start(), stop)
        with tempfile.TemporaryDirectory() as folder:
            save(run, Path(folder) / "run.safetensors")
            resumed = restore(Path(folder) / "run.safetensors", start)
        for _ in range(rest):  # the step that ends the round takes gradients of before the stop and of after it
            run, _ = step(run)
        resumed = go_on(resumed, rest)
        if differences := treekit.tree_diff(resumed, run):
            sys.exit(f"a resumed run should be the same, bit for bit:\n{differences}")
        run = go_on(resumed, total - stop - rest)
    print(f"\nStopped within a round, after {stop} micro-batches, saved and resumed:")
    print("all arrays are the same, bit for bit.")
    return nnx.merge(task.graph, training.get_params_ema(run.state, run.params)), stop


def create_optimizer_plainly(rounds: int) -> plain_optax.MultiSteps:
    # The labels and the mask are functions of the path.
    def group(path: Any, _: Any) -> str:
        return {"first": "frozen", "head": "head"}.get(path[0].key, "body")

    def is_kernel(path: Any, _: Any) -> bool:
        return any(getattr(entry, "key", None) == "kernel" for entry in path)

    def groups(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(group, params)

    def kernels(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(is_kernel, params)

    schedule = plain_optax.cosine_decay_schedule(RATE, rounds)
    adamw = plain_optax.adamw(schedule, weight_decay=DECAY, mask=kernels)
    body = plain_optax.chain(adamw, plain_optax.scale(BODY))
    kinds: Any = {"frozen": plain_optax.set_to_zero(), "body": body, "head": adamw}
    tx = plain_optax.partition(kinds, groups)
    return plain_optax.MultiSteps(tx, every_k_schedule=ACCUMULATE)


def fine_tune_plainly(task: Task, params: nnx.State[Any, Any], losses: list[float]) -> Network:
    """The average of the params, which is kept by hand."""
    optimizer = create_optimizer_plainly(task.rounds)
    ema = plain_optax.ema(AVERAGE, accumulator_dtype=jnp.float32)

    @jax.jit
    def step(params: Any, state: Any, key: Array) -> tuple[Any, Any, Array, Array]:
        key, files_key, _ = jax.random.split(key, 3)
        value, grads = jax.value_and_grad(task.loss)(params, task.sample(files_key))
        updates, state = optimizer.update(grads, state, params)
        return plain_optax.apply_updates(params, updates), state, key, value

    state: Any = optimizer.init(params)
    average_state: Any = ema.init(params)
    average: Any = params
    key = jax.random.key(0)
    for _ in tqdm(range(task.rounds), desc="plain Optax", ncols=80, unit="round", disable=None):
        for _ in range(ACCUMULATE):
            params, state, key, value = step(params, state, key)
            losses.append(float(value))
        average, average_state = ema.update(params, average_state)
    return nnx.merge(task.graph, average)


# What each writes besides, for an average of the params: after `init`, after each round, and at the end.
AVERAGES = {
    "plain Optax": (
        "ema = optax.ema(AVERAGE, accumulator_dtype=jnp.float32)",
        "average_state = ema.init(params)",
        "average, average_state = ema.update(params, average_state)",
    ),
    "treekit": ("average = training.get_params_ema(state, params)",),
}


def show_code() -> None:
    """Print what each of the two needs for groups, decay, accumulation and an average."""
    print("\nWhat each had to write:")
    for name, function in (("plain Optax", create_optimizer_plainly), ("treekit", create_optimizer)):
        code = inspect.getsource(function).replace("plain_optax", "optax").splitlines()
        lines = [line for line in code if line.strip() and not line.strip().startswith("#")]
        print("\n".join([f"\n{name}: {len(lines) + len(AVERAGES[name])} lines", *lines, *AVERAGES[name]]))


# --- What was learned, and what was forgotten -------------------------------------------------------------------------


@dataclasses.dataclass
class Scores:
    """The answers of some models for the same files."""

    labels: list[str]  # the last of which is the new class
    kinds: np.ndarray  # [n], of each file
    answers: dict[str, np.ndarray]  # [n] of each model, the first of which is magika as it is

    def right(self, model: str) -> np.ndarray:
        """For stubs and sources, which answers are right; for other files, which are still magika's own."""
        own, python = next(iter(self.answers.values())), self.labels.index("python")
        wanted = np.select([self.kinds == 0, self.kinds == 1], [len(self.labels) - 1, python], own)
        right: np.ndarray = self.answers[model] == wanted
        return right

    def count(self, model: str, kind: int) -> tuple[int, int]:
        right = self.right(model)[self.kinds == kind]
        return int(right.sum()), len(right)

    def show(self) -> None:
        print(f"\n{'':40}" + "".join(f"{model:>13}" for model in self.answers))
        for kind, text in enumerate(("stubs, right", "sources, right", "other files, answered as before")):
            counts = [self.count(model, kind) for model in self.answers]
            print(f"{f'{text}, of {counts[0][1]}':40}" + "".join(f"{right:13}" for right, _ in counts))
        own, *_, found = (found[self.kinds == 2] for found in self.answers.values())
        changed = collections.Counter(
            (self.labels[a], self.labels[b]) for a, b in zip(own, found, strict=True) if a != b
        )
        pairs = [f"{n} {old} became {new}" for (old, new), n in changed.most_common()]
        print(f"Forgotten: {'; '.join(pairs) or 'nothing'}.")


# --- The picture ------------------------------------------------------------------------------------------------------

STUB, PYTHON, ELSE, SAME, CHANGED = "#d9822b", "#2a5c8a", "#4a4a4a", "#c3ccd5", "#c0392b"
MEANING = {
    STUB: "“a stub”",
    PYTHON: "“Python”",
    ELSE: "“something else”",
    SAME: "the same answer as magika's",
    CHANGED: "another answer",
}
ROW = 36  # squares side by side


def draw(scores: Scores, losses: dict[str, list[float]], stopped: int, dtype: str) -> None:
    rows = [-(-np.sum(scores.kinds == kind) // ROW) for kind in range(len(KINDS))]
    heights = 1.2 + 0.13 * sum(rows), 2.8  # inches
    figure = Figure(figsize=(12, sum(heights)), dpi=90, layout="constrained")
    (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)
    drawn = set[str]()
    titles = {"magika": "magika as it is", **{model: f"fine-tuned with {model}{dtype}" for model in losses}}
    if np.array_equal(scores.answers["plain Optax"], scores.answers["treekit"]):
        del titles["plain Optax"]
        titles["treekit"] = f"fine-tuned with treekit{dtype}; with plain Optax, the same"
    columns = above.subfigures(1, len(titles), squeeze=False, wspace=0.03)[0]
    for column, (model, title) in zip(columns, titles.items(), strict=True):
        column.suptitle(title, fontsize=13)
        for kind, axes in enumerate(column.subplots(len(KINDS), 1, height_ratios=rows)):
            drawn |= draw_answers(axes, scores, model, kind)
    handles = [
        Line2D([], [], color=colour, marker="s", linestyle="", markersize=9, label=text)
        for colour, text in MEANING.items()
        if colour in drawn
    ]
    title = "Each square is a file of a package that was not trained on. Its colour is the answer."
    below.legend(handles=handles, title=title, loc="outside upper center", ncols=len(handles), frameon=False)
    draw_losses(below.subplots(), losses, stopped)
    _program.save(figure, PICTURE)


def draw_answers(axes: Axes, scores: Scores, model: str, kind: int) -> set[str]:
    """Draw a square for each file, those with the right answer first, and return the colours."""
    found, right = scores.answers[model][scores.kinds == kind], scores.right(model)[scores.kinds == kind]
    names = np.array(scores.labels)[found]
    if kind == 2:
        colours = np.where(right, SAME, CHANGED)
    else:
        colours = np.select([names == scores.labels[-1], names == "python"], [STUB, PYTHON], ELSE)
    in_order = [str(colours[i]) for i in np.argsort(~right, kind="stable")]
    cells = np.ones((-(-len(found) // ROW), ROW, 3))  # white
    cells.reshape(-1, 3)[: len(found)] = [to_rgb(colour) for colour in in_order]
    axes.imshow(cells)
    axes.set_xticks(np.arange(ROW + 1) - 0.5, labels=[])
    axes.set_yticks(np.arange(len(cells) + 1) - 0.5, labels=[])
    axes.grid(color="white", linewidth=1.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    count, total = scores.count(model, kind)
    what = "answered as before" if kind == 2 else "right"
    axes.set_title(f"{KINDS[kind]}: {count} of {total} {what}", loc="left", fontsize=11)
    return set(in_order)


def draw_losses(axes: Axes, losses: dict[str, list[float]], stopped: int) -> None:
    styles: dict[str, Any] = {"plain Optax": {"color": "#e3b27d", "linewidth": 5}, "treekit": {"color": PYTHON}}
    for model, style in styles.items():
        rounds = np.reshape(losses[model], (-1, ACCUMULATE)).mean(axis=1)
        axes.plot((np.arange(len(rounds)) + 0.5) * ACCUMULATE, rounds, label=model, **style)
    axes.axvline(stopped, color=ELSE, linestyle="--", linewidth=1)
    text = " stopped within a round, saved, resumed"
    axes.text(stopped, 0.97, text, color=ELSE, va="top", transform=axes.get_xaxis_transform())
    axes.set(xlim=(0, len(losses["treekit"])), ylim=(0, None))
    axes.margins(y=0.1)
    axes.set_title("loss, mean of a round", loc="left", fontsize=11)
    axes.set_xlabel("micro-batch")
    axes.legend(loc="lower left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Teach magika to distinguish Python stubs from sources.")
    parser.add_argument("--bf16", action="store_true", help="store params and state in bf16")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="steps of the optimizer (%(default)s)")
    parser.add_argument("--files", type=int, default=FILES, help="files of a kind to train with, at most (%(default)s)")
    site = sysconfig.get_path("purelib")
    parser.add_argument("--folder", type=Path, default=site, help="where packages are (%(default)s)")
    options = parser.parse_args()

    if not options.folder.is_dir():
        parser.error(f"--folder: there is no folder {options.folder}")
    if options.rounds < 1 or options.files < 2:
        parser.error("--rounds must be 1 or more, and --files 2 or more")

    _program.check_folder(PICTURE)
    deployed = open_wheel()
    original = load_model(deployed)
    train, test = find_files(options.folder, deployed.config, options.files)
    print()
    train.show("To train with")
    test.show("To test with")
    own = check(original, deployed, test)

    python = deployed.labels.index("python")
    grown = grow(original, python, jnp.bfloat16 if options.bf16 else jnp.float32)
    params = nnx.state(grown, nnx.Param)
    optimizer = create_optimizer(options.rounds, options.bf16)
    print("\nWhat the optimizer does in its first step, for a gradient of ones:")
    training.summary(optimizer, params).show()

    task = create_task(grown, original, train, python, options.rounds)
    losses: dict[str, list[float]] = {"plain Optax": [], "treekit": []}
    tuned, stopped = fine_tune(task, optimizer, params, losses["treekit"])
    plain = fine_tune_plainly(task, params, losses["plain Optax"])

    tested = {"magika": own, "plain Optax": answers(plain, test.tokens), "treekit": answers(tuned, test.tokens)}
    scores = Scores([*deployed.labels, "stub"], test.kinds, tested)
    scores.show()
    if np.array_equal(tested["plain Optax"], tested["treekit"]):
        print("Plain Optax and treekit give the same answer for each file.")
    differences = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), nnx.state(tuned), nnx.state(plain))
    print(f"Largest difference between their params: {max(jax.tree.leaves(differences)):.0e}")
    show_code()
    draw(scores, losses, stopped, ", in bf16" if options.bf16 else "")
    print(f"\npicture: {PICTURE}")
    right, total = scores.count("treekit", 0)
    if options.rounds >= ROUNDS and right < total / 2:  # with fewer rounds, it has only begun to learn
        sys.exit("the fine-tuned model should recognize most stubs")


if __name__ == "__main__":
    main()
