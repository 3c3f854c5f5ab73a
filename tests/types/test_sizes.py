"""What treekit uses of jaxtyping without being in its documentation: where it has changed, an error says so."""

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jaxtyping._storage
import pytest

import treekit as tk
from tests.types.nodes import Linear, checked, linear
from treekit._types.sizes import UnknownJaxtypingError, storage
from treekit.typing import Batched, Typed

stored: Any = jaxtyping._storage
get: Callable[[], Any] = stored.get_shape_memo
# What a later jaxtyping does instead of one of its functions, and what the error says of it.
LATER: dict[str, tuple[str, Any, str]] = {
    "another kind": ("get_shape_memo", None, "'NoneType' object is not callable"),
    "a memo is a copy": ("get_shape_memo", lambda: copy.deepcopy(get()), "found ([True, False], ({'n': 2, 'm': 3}, "),
    "sizes are not stored": ("set_shape_memo", lambda *parts: None, "AnnotationError"),
}


Checked: Any = tk.node(check=True)(type("Checked", (Linear,), {}))


@checked
def typed(node: Typed[Linear]) -> None: ...


@checked
def batched(node: Batched[Linear, "m"]) -> None: ...


@pytest.mark.parametrize("case", LATER)
def test_where_jaxtyping_has_changed_only_what_needs_it_says_so(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, later, fact = LATER[case]
    monkeypatch.setattr(stored, name, later)
    untried: Any = storage
    untried.cache_clear()
    assert tk.tree_summary(linear()).total.numbers == 20
    for use in (tk.check_types, Checked, typed, batched):
        with pytest.raises(UnknownJaxtypingError) as caught:
            use(linear())
        assert fact in str(caught.value)


def test_treekit_is_imported_without_it() -> None:
    code = "import jaxtyping, sys; sys.modules['jaxtyping._storage'] = None; import treekit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
