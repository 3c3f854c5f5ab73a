"""The matrix as a page: cells held by wrapper and by kind of params, and the reason of each failure."""

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from benchmarks._timing import markdown, setting


class Outcome(NamedTuple):
    """What became of one cell: why treekit and plain Optax do not hold it, and what bare Optax does there."""

    optimizer: str
    wrapper: str
    params: str
    beside: bool  # was plain Optax asked too?
    treekit: str | None
    optax: str | None
    bare: str | None  # None where it works, or has not been asked since treekit holds the cell

    @property
    def is_exception(self) -> bool:
        """Whether treekit fails where the bare transformation of Optax fails on the same leaves in a plain list."""
        return self.treekit is not None and self.bare is not None


# Read it against the figures after each run.
_CONCLUSION = """
Wherever the bare optimizer of Optax works, the same optimizer of treekit obeys the laws in every wrapper and on every
kind of params that was tried, unless this page lists a failure. Plain Optax obeys them in two thirds of the
combinations that were drawn: in none on raw models or with PRNG keys and ints among the params, and in less than half
with f32 gradients for bf16 params. The exceptions below are due to the optimizer itself, which treekit does not
change.
""".strip()

_WHAT = """
A cell is an optimizer in a wrapper on one kind of params. A library *holds* a cell if

- all laws of `check_transformation` hold, except the one that moments in 16 bits decay;
- forty steps of training preserve the dtypes of the params, give no NaN, and reduce the loss as in f32;
- the results equal those of plain Optax on the same leaves in a list, where plain Optax works.

A cell is an *exception* if the bare transformation of Optax, without any wrapper, raises or gives NaN on the same
leaves in a list.
""".strip()


def page(outcomes: Sequence[Outcome], cells: int, seed: int) -> str:
    """The page in Markdown, of outcomes among so many cells."""
    outcomes = sorted(outcomes)
    exceptions = [o for o in outcomes if o.is_exception]
    failures = [o for o in outcomes if o.treekit is not None and not o.is_exception]
    of_optax = [o for o in outcomes if o.optax is not None]
    beside = [o for o in outcomes if o.beside]
    drawn = f"{len(outcomes):,} of {cells:,} cells ({len(outcomes) / cells:.1%}), drawn at random with the seed {seed}"
    share = drawn if len(outcomes) < cells else f"all {cells:,} cells"
    count = len(outcomes) - len(exceptions) - len(failures)
    parts = [
        "# The matrix",
        _CONCLUSION,
        f"Written by `python -m benchmarks.evidence.matrix` on {datetime.date.today()}: "
        f"{setting('optax', 'jax', 'equinox', 'flax')}.",
        _WHAT,
        f"Run: {share}.",
        f"**treekit holds {count:,} and fails in {len(failures):,}; {len(exceptions):,} are exceptions. Plain Optax "
        f"holds {len(beside) - len(of_optax):,} of {len(beside):,} cells drawn at random.**",
        "## By wrapper",
        _held("wrapper", outcomes, lambda o: o.wrapper),
        "## By kind of params",
        _held("params", outcomes, lambda o: o.params),
        "## The exceptions",
        _exceptions(exceptions) if exceptions else "None.",
        "## Failures of treekit",
        _reasons(failures, lambda o: o.treekit),
        "## Failures of plain Optax",
        _reasons(of_optax, lambda o: o.optax),
    ]
    return "\n\n".join(parts) + "\n"


def _grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    return dict(sorted(groups.items()))


def _held(title: str, outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> str:
    """treekit and plain Optax side by side."""
    rows = [
        (
            name,
            len(group),
            sum(o.treekit is None for o in group),
            sum(o.is_exception for o in group),
            f"{sum(o.beside and o.optax is None for o in group)} of {sum(o.beside for o in group)}",
        )
        for name, group in _grouped(outcomes, key).items()
    ]
    return markdown((title, "cells", "treekit holds", "exceptions", "Optax holds"), rows)


def _exceptions(exceptions: Iterable[Outcome]) -> str:
    """By optimizer and kind of params: the wrappers do not matter, since it is in none of them that Optax fails."""
    rows = [
        (*name.split(" / "), len(group), f"`{_short(group[0].bare or '')}`")
        for name, group in _grouped(exceptions, lambda o: f"{o.optimizer} / {o.params}").items()
    ]
    return markdown(("optimizer", "params", "cells", "bare Optax"), rows)


def _reasons(failures: Sequence[Outcome], reason: Callable[[Outcome], str | None]) -> str:
    """Each reason, how often, and one cell that has it; the commonest first."""
    groups = _grouped(failures, lambda o: _short(reason(o) or ""))
    commonest = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [(len(group), f"`{name}`", " / ".join(group[0][:3])) for name, group in commonest]
    return markdown(("cells", "reason", "such as"), rows) if failures else "None."


def _short(reason: str) -> str:
    """The law; and the error, if that is how it was broken, without what differs from cell to cell."""
    law, _, found = reason.partition(": ")
    if law.endswith("Error"):
        return _trimmed(reason)
    return f"{law}: {_trimmed(found)}" if re.match(r"\w+Error", found) else law


def _trimmed(error: str) -> str:
    plain = re.sub(r" at 0x[0-9a-f]+", "", " ".join(error.replace("`", "'").split()))
    return plain if len(plain) <= 100 else plain[:100].rsplit(" ", 1)[0] + " \N{HORIZONTAL ELLIPSIS}"
