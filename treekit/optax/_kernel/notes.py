"""Notes on the errors of Optax's own functions, which name neither the transformation nor the leaf."""

import itertools
import traceback

import jax

from treekit._base.jax import jtu
from treekit._base.types import Params, PyTree
from treekit._names.key_path import flatten_with_path, path_text
from treekit._text.describe import describe, describe_value

_CALLED_BY_OPTAX = ("optax", "jax", "numpy", "contextlib", "functools")


def note_transformation(error: Exception, *trees: PyTree) -> None:
    """Note which transformation of Optax raised an error, for which leaf, and with which arguments.

    Its frames tell. The innermost `update_fn` or `init_fn` is that of, say, `optax.scale_by_sm3`, whose arguments it
    closes over. A leaf is a variable of it, or of a function that it calls. An error of a user's function that Optax
    calls gets no note.

    Args:
        error: an error of `init` or `update`.
        trees: what Optax received. Their leaves are known by identity.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_optax = itertools.takewhile(lambda x: _package(x.f_globals) in _CALLED_BY_OPTAX, reversed(frames))
    leaves = {id(x): (path, x) for tree in trees for path, x in flatten_with_path(tree)[0]}
    found: list[str] = []
    for frame in of_optax:
        variables = frame.f_locals
        pairs = [leaves[id(x)] for x in variables.values() if id(x) in leaves]
        found += [f" for the leaf {path_text(path)}, which is {describe(leaf)}" for path, leaf in pairs]
        if frame.f_code.co_name in ("init_fn", "update_fn") and _package(frame.f_globals) == "optax":
            factory = frame.f_code.co_qualname.partition(".<locals>")[0]
            arguments = [
                f"{name}={describe_value(variables.get(name))}"
                for name in frame.f_code.co_freevars
                if not any(map(callable, jtu.tree_leaves(variables.get(name))))  # such as the links of a chain
            ]
            error.add_note(
                f"It was raised in {factory} of Optax ({frame.f_globals['__name__']}){''.join(found[:1])}. "
                f"Its arguments: {', '.join(arguments) or 'none'}"
            )
            break


def note_shapes(error: Exception, params: Params) -> None:
    """Note that `init` needs arrays, if the params have shapes only."""
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in jtu.tree_leaves(params)):
        error.add_note(
            "init received jax.ShapeDtypeStructs, which have no values. For the shapes of the state, call "
            "jax.eval_shape(optimizer.init, params)"
        )


def _package(module: dict[str, object]) -> str:
    return str(module.get("__name__")).partition(".")[0]
