"""The laws that pytrees and gradient transformations must obey, and the command that checks a model."""
