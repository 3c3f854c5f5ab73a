"""About a minute of the fuzzer, with the same seeds each time; `make fuzz MINUTES=30` has new ones."""

import random

import pytest

from tests.trees import untyped

from .cases import PLAIN, STATE, case_of
from .laws import described, failures
from .rules import reason

BLOCK = 15


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_random_programs_obey_the_laws(block: int) -> None:
    asked = set[str]()
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        case = case_of(random.Random(seed))
        found, laws = failures(case)
        asked |= laws
        unexplained = [failure for failure in found if reason(case, failure) is None]
        assert not unexplained, f"seed {seed}\n" + "\n".join(described(case, failure) for failure in unexplained)
    untyped.clear_caches()
    assert {PLAIN, STATE} <= asked
