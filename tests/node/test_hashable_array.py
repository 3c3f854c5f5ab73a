"""HashableArray: equal by dtype, shape and bytes, so it can be static."""

import copy
import pickle
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import treekit as tk

NAN = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)  # two NaN with different bits
# All of them differ from each other.
ARRAYS: dict[str, Any] = {
    "f32": np.ones(2, np.float32),
    "bf16": np.ones(2, ml_dtypes.bfloat16),
    "bool": np.array([True, False]),
    "another shape": np.ones((2, 1), np.float32),
    "a number": 1.0,
    "zeros": np.zeros(2, np.float32),
    "minus zero": -np.zeros(2, np.float32),
    "NaN": NAN[:1],
    "another NaN": NAN[1:],
    "empty, another shape": np.zeros((3, 0), np.float32),
    "a list": [1, 2],
    "a transposed one": np.arange(6.0).reshape(2, 3).T,
}
SAME: list[Any] = [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), tk.HashableArray]


@pytest.mark.parametrize("name", ARRAYS)
def test_equal_by_dtype_shape_and_bytes(name: str) -> None:
    x = ARRAYS[name]
    mine = tk.HashableArray(x)
    assert [other for other, y in ARRAYS.items() if tk.HashableArray(y) == mine] == [name]
    for make in (*SAME, lambda mine: tk.HashableArray(np.asarray(mine))):
        again = make(mine)
        assert again == mine and hash(again) == hash(mine) and type(again) is tk.HashableArray
    want = np.asarray(x)
    assert (mine.dtype, mine.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(np.asarray(mine), want)
    assert repr(mine) == f"HashableArray({want!r})"
    assert mine != want.tolist()


def test_the_byte_order_is_that_of_jax() -> None:
    assert tk.HashableArray(np.ones(2, ">f4")) == tk.HashableArray(jnp.ones(2, jnp.float32))


def test_a_read_only_copy() -> None:
    x = np.ones(3)
    mine = tk.HashableArray(x)
    x[0] = 5
    assert np.asarray(mine).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(mine)[0] = 5
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        np.asarray(mine).setflags(write=True)
    np.array(mine)[0] = 5  # a copy
    assert np.asarray(mine, np.float16).dtype == np.float16 and jnp.asarray(mine).tolist() == [1, 1, 1]
