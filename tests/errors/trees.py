"""Errors of functions on whole trees: tree_at, tree_diff, tree_summary, tree_shared, and the mistakes that every function meets."""

from tests.errors.mistake import Mistake

MISTAKES: dict[str, Mistake] = {}
