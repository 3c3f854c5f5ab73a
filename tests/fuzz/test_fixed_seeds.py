"""About a minute of the fuzzer, with the same seeds each time; `make fuzz MINUTES=30` has new ones."""

import collections

import pytest

from .cases import PLAIN, STATE
from .rules import check_programs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_obey_the_laws(seed: int) -> None:
    seen = collections.Counter[str]()
    check_programs(seed, 15, seen)
    assert seen[PLAIN] and seen[STATE]
