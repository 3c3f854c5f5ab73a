"""Errors of functions on the leaves of a tree: filter, masks by key path, maps, stack, round, trainable."""

from tests.errors.mistake import Mistake

MISTAKES: dict[str, Mistake] = {}
