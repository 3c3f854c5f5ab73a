"""Errors of what was saved: graft, state dicts, checkpoints and weights of torch."""

from tests.errors.mistake import Mistake

MISTAKES: dict[str, Mistake] = {}
