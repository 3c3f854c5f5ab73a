"""How instances of a class made by `@node` are created, apart from running `__init__`; its `Layout` has it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

COPY = "treekit.copy"  # the key in a field's metadata
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True)
class Creation:
    """What the fields of a class and its `__init__` say of creating an instance."""

    defaults: Mapping[str, Any]
    converters: Mapping[str, Callable[[Any], Any]]
    uncopied: frozenset[int | str]  # arguments that are not copied, by position and by name
    remembers: bool  # whether instances may cache their `StaticFields`; not if the class pickles their __dict__ itself
    generated: bool  # whether `__init__` was generated for this class
    checked: bool  # whether the fields are compared with their annotations

    @classmethod
    def of(
        cls,
        fields: Sequence[dataclasses.Field[Any]],
        init: Callable[..., None],
        *,
        remembers: bool,
        generated: bool,
        checked: bool,
    ) -> "Creation":
        """Read this from the fields of a dataclass and its `__init__`."""
        uncopied: set[int | str] = {f.name for f in fields if not f.metadata.get(COPY, True)}
        if uncopied:
            _, *parameters = inspect.signature(init).parameters.values()
            by_position = [x.name for x in parameters if x.kind in _BY_POSITION]
            uncopied |= {i for i, name in enumerate(by_position) if name in uncopied}
        return cls(
            defaults={f.name: f.default for f in fields if f.default is not dataclasses.MISSING},
            converters={f.name: f.metadata["converter"] for f in fields if f.metadata.get("converter") is not None},
            uncopied=frozenset(uncopied),
            remembers=remembers,
            generated=generated,
            checked=checked,
        )
