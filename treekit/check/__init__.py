"""The laws that pytrees and gradient transformations must obey."""
