"""What errors say of arguments that several functions take: a class for an instance, and a word for a bool."""

from treekit._text.describe import describe_value

# What is wrong with a class that JAX cannot rebuild around other leaves, and what to do.
RUNS_ITS_CODE = (
    "Its own code, such as __init__ or __post_init__, runs when JAX rebuilds it. Register it with treekit.register_node"
)


def refuse_class(x: object, function: str) -> None:
    """Raise a TypeError if a function that takes a tree is given a class: an instance is meant."""
    if isinstance(x, type):
        raise TypeError(
            f"{function} takes an instance, found the class {x.__qualname__}: write {function}({x.__name__}(...))"
        )


def check_bool(name: str, x: object) -> bool:
    """Return an option; raise a TypeError if it is not a bool, since "no" would be true."""
    if not isinstance(x, bool):
        raise TypeError(f"{name} must be True or False, found {describe_value(x)}")
    return x
