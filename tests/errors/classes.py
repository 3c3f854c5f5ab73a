"""Errors of classes: node, register_node, node_factory, replace, HashableArray, check_types, Typed and check_pytree."""

from tests.errors.mistake import Mistake

MISTAKES: dict[str, Mistake] = {}
