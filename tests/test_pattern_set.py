"""PatternSet gives what trying each pattern in turn gives."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treekit._base import key_path as pattern_set
from treekit._base.key_path import PatternSet, match_part, matches, may_match_below

PARTS = st.sampled_from(["a", "b", "0", "1", "12", "ab", ""])
NAMES = st.lists(PARTS, max_size=4).map(".".join)
GLOBS = st.lists(PARTS | st.sampled_from(["*", "**", "a*", "?", "[01]"]), min_size=1, max_size=4).map(".".join)
PATTERNS = st.lists(GLOBS | st.sampled_from(["a.*", ".*b", "[01]"]).map(re.compile), max_size=6)


@given(PATTERNS, NAMES)
def test_it_finds_the_first_pattern_that_matches(patterns: list[str | re.Pattern[str]], name: str) -> None:
    expected = [i for i, pattern in enumerate(patterns) if matches(pattern, name)]
    found = PatternSet(patterns)
    assert found.first(name) == next(iter(expected), None)
    assert sorted(found.matching(found.place(name), name)) == expected


@given(GLOBS, NAMES, NAMES)
def test_a_glob_that_matches_a_longer_name_may_match_below(glob: str, name: str, rest: str) -> None:
    if matches(glob, f"{name}.{rest}" if name else rest) and rest:
        assert may_match_below(glob, name)


@pytest.mark.parametrize(
    ("glob", "below", "not_below"),
    [
        ("a.b", ["", "a"], ["b", "a.b", "c.d"]),
        ("a.*", ["a"], ["a.b"]),
        ("**", ["", "a.b"], []),
        ("a.**", ["a.b"], ["b"]),
    ],
)
def test_where_a_glob_may_match(glob: str, below: list[str], not_below: list[str]) -> None:
    assert all(may_match_below(glob, name) for name in below)
    assert not any(may_match_below(glob, name) for name in not_below)


def test_a_table_with_a_pattern_a_layer_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, str]] = []

    def counted(part: str, text: str) -> bool:
        tried.append((part, text))
        return match_part(part, text)

    monkeypatch.setattr(pattern_set, "match_part", counted)
    found = PatternSet([f"**.layers.{i}.*" for i in range(1000)] + ["**.[ab]"])
    assert found.first("params.layers.7.w") == 7 and found.first("params.layers.1000.w") is None
    assert found.first("params.layers.1000.a") == 1000
    assert {part for part, _ in tried} == {"[ab]"} and len(tried) <= 8
