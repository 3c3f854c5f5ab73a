"""The laws of pytrees and of gradient transformations, and the command that checks a model against them."""
