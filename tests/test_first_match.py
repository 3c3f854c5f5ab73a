"""FirstMatch gives what trying each pattern in turn gives."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treekit._base import first_match
from treekit._base.first_match import FirstMatch
from treekit._base.patterns import matches

PARTS = st.sampled_from(["a", "b", "0", "1", "12", "ab", ""])
NAMES = st.lists(PARTS, max_size=4).map(".".join)
GLOBS = st.lists(PARTS | st.sampled_from(["*", "**", "a*", "?", "[01]"]), min_size=1, max_size=4).map(".".join)
PATTERNS = st.lists(GLOBS | st.sampled_from(["a.*", ".*b", "[01]"]).map(re.compile), max_size=6)


@given(PATTERNS, NAMES)
def test_it_finds_the_first_pattern_that_matches(patterns: list[str | re.Pattern[str]], name: str) -> None:
    expected = next((i for i, pattern in enumerate(patterns) if matches(pattern, name)), None)
    assert FirstMatch(patterns)(name) == expected


def test_it_tries_few_patterns_of_a_table_with_one_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str | re.Pattern[str]] = []

    def counted(pattern: str | re.Pattern[str], name: str) -> bool:
        tried.append(pattern)
        return matches(pattern, name)

    monkeypatch.setattr(first_match, "matches", counted)
    first = FirstMatch([f"**.layers.{i}.**" for i in range(1000)])
    assert first("params.layers.7.w") == 7 and first("params.layers.1000.w") is None
    assert tried == ["**.layers.7.**"]
