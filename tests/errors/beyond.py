"""Errors of averages, hyperparameters in a state, precision, 8 bits, summary, and treekit.testing."""

from tests.errors.mistake import Mistake

MISTAKES: dict[str, Mistake] = {}
