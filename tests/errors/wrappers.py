"""Errors of masked, filtered, partition, inject_hyperparams, MultiSteps, lbfgs, and sharded params."""

from tests.errors.mistake import Mistake

MISTAKES: dict[str, Mistake] = {}
