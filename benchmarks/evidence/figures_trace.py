"""How much work treekit does in Python to trace one update of nested wrappers."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp

import treekit
import treekit.optax as tko
from benchmarks.evidence.figure import Figure
from treekit._base.jax import untyped

TREEKIT = str(Path(treekit.__file__).parent) + "/"
JAX = str(Path(jax.__file__).parent) + "/"
BOUNDARY = ("optax/_kernel/crossing.py", "Crossing.__init__")
DTYPE_KERNEL = ("optax/_kernel/preserve_dtypes.py", "preserve_dtypes.<locals>.update")
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # Python 3.12 inlines most, so none counts

# The C++ methods that every tree function of JAX calls in the end, by class.
FLATTENERS: dict[type[Any], tuple[str, ...]] = {
    type(untyped.tree_util.default_registry): ("flatten", "flatten_with_path"),
    jax.tree_util.PyTreeDef: ("flatten_up_to",),
}

Calls = Counter[tuple[str, str]]  # by file and qualified name


class Model(NamedTuple):
    """A raw model of two arrays. The updates at each stage are of this class; so are the moments."""

    weight: jax.Array
    bias: jax.Array
    activation: Callable[[jax.Array], jax.Array] | None


def figures() -> Iterator[Figure]:
    """Those of an update of `MultiSteps(masked(inject_hyperparams(adamw)))`."""
    trace = Trace()
    trace()  # what is done once only, such as imports, is not counted
    with counting_calls() as calls:
        trace()
    with counting_flattenings(trace.is_update) as flattenings:
        trace()
    files = len({file for file, _ in calls})
    name = "MultiSteps(masked(inject_hyperparams(adamw))), traced:"
    yield Figure(f"{name} calls of treekit's functions", calls.total(), goal=450)
    yield Figure(f"{name} files of treekit", files, goal=17)
    yield Figure(f"{name} crossings of the boundary", crossings(calls, BOUNDARY), goal=1)
    # One, and one more for the loop of MultiSteps.
    yield Figure(f"{name} crossings of the dtype kernel", crossings(calls, DTYPE_KERNEL), goal=2)
    note = ", ".join(f"{file} {count}" for file, count in flattenings.most_common())
    yield Figure(f"{name} flattenings of the updates", flattenings.total(), goal=8, note=note)


def is_matrix(params: Any) -> Any:
    """The mask: a function of the params, as users write it."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) > 1, params)


class Trace:
    """A call that traces an update for a raw model.

    Attributes:
        given: the arrays of the state and the params, in the last trace.
    """

    def __init__(self) -> None:
        masked: Any = tko.masked(tko.inject_hyperparams(tko.adamw)(1e-3), is_matrix)
        self._multi_steps = tko.MultiSteps(masked, 4)
        self._model = Model(jnp.ones((2, 3)), jnp.ones(3), jax.nn.relu)
        self._state = self._multi_steps.init(self._model)
        self.given: list[Any] = []

    def __call__(self) -> None:
        def update(grads: Model, state: Any, params: Model) -> Any:  # a new one each time: JAX keeps what it has traced
            self.given = untyped.tree.leaves((state, params))
            return self._multi_steps.update(grads, state, params._replace(activation=self._model.activation))

        arrays = self._model._replace(activation=None)
        jax.eval_shape(update, arrays, self._state, arrays)

    def is_update(self, tree: object) -> bool:
        """Whether a tree is like the updates, and is neither the params nor in the state that is given."""
        array = tree.weight if isinstance(tree, Model) else None
        return isinstance(array, jax.Array) and all(array is not x for x in self.given)


@contextmanager
def counting_calls() -> Iterator[Calls]:
    """Count the calls of treekit's functions."""
    calls: Calls = Counter()

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(TREEKIT) and code.co_name not in COMPREHENSIONS:
            calls[code.co_filename.removeprefix(TREEKIT), code.co_qualname] += 1

    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def crossings(calls: Calls, function: tuple[str, str]) -> int:
    """How often a function was called that is called in each update.

    Raises:
        LookupError: it was not, so it has moved or has another name, and would always be counted as none.
    """
    if function not in calls:
        raise LookupError(f"no call of {function[1]} in treekit/{function[0]}: where has it moved to?")
    return calls[function]


@contextmanager
def counting_flattenings(counts: Callable[[object], bool]) -> Iterator[Counter[str]]:
    """Count, by file, how often treekit has JAX flatten a tree that counts; what Optax flattens itself is not ours."""
    found: Counter[str] = Counter()

    def counting(flatten: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, tree: Any, *args: Any, **kwargs: Any) -> Any:
            if counts(tree) and (file := caller()).startswith(TREEKIT):
                found[file.removeprefix(TREEKIT)] += 1
            return flatten(self, tree, *args, **kwargs)

        return method

    with ExitStack() as stack:
        for cls, names in FLATTENERS.items():
            for name in names:
                stack.enter_context(mock.patch.object(cls, name, counting(getattr(cls, name))))
        yield found


def caller() -> str:
    """The file that called JAX."""
    frame: FrameType | None = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith(JAX):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""
