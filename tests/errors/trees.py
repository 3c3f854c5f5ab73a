"""Errors of tree_at, tree_diff, tree_summary and tree_shared, and of mistakes that every function meets."""

from tests.errors.mistake import Mistake

MISTAKES: dict[str, Mistake] = {}
