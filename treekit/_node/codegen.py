"""Generate the functions that flatten and rebuild the instances of a class.

Their source has the field names written out, which runs several times as fast as a loop over names.
"""

import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax

STATIC = "__treekit_static__"  # the key in an instance's __dict__ under which its static part is cached

Function = Callable[..., Any]


@runtime_checkable
class Fields(Protocol):
    """The parts of a `Layout`, whose module imports this one, from which the functions are generated."""

    cls: type[Any]
    data: tuple[str, ...]
    meta: tuple[str, ...]
    remembers: bool

    def intern(self, values: tuple[Any, ...]) -> Any: ...
    def read_static(self, x: object) -> Any: ...
    def freeze_attributes(self, x: object) -> Any: ...
    def check_fields_are_set(self, x: object, error: AttributeError) -> None: ...


_FLATTEN = """
def flatten(self):
    try:
{read_static}
        return ({children}), static
    except AttributeError as error:
        check_fields_are_set(self, error)
        raise
"""

# The cached static part is used unless the instance was changed through `object.__setattr__`.
_READ_REMEMBERED = """
static = self.{STATIC}
values = static.values
if {changed}:
    static = freeze_attributes(self)
"""

_REBUILD_WITH_DICT = """
def rebuild(static, children):
    self = new(cls)
    attributes = static.template.copy()
    ({into_attributes}) = children
    {remember}
    set_dict(self, attributes)
    return self
"""


def generate_flatten(fields: Fields) -> tuple[Function, Function]:
    """Generate `flatten`, from an instance to (children, static), and `flatten_with_keys`."""
    scope: dict[str, Any] = {
        "keys": tuple(jax.tree_util.GetAttrKey(name) for name in fields.data),
        "check_fields_are_set": fields.check_fields_are_set,
        "read_static": fields.read_static,
        "freeze_attributes": fields.freeze_attributes,
    }
    if fields.remembers:
        changed = " or ".join(f"values[{i}] is not self.{name}" for i, name in enumerate(fields.meta))
        read_static = _READ_REMEMBERED.format(STATIC=STATIC, changed=changed)
    elif fields.meta:
        read_static = "static = read_static(self)"
    else:
        read_static = "static = empty"
        scope["empty"] = fields.intern(())

    def generate(*children: str) -> Function:
        lines = textwrap.indent(read_static, " " * 8)
        source = _FLATTEN.format(read_static=lines, children="".join(f"{child}, " for child in children))
        flatten: Function = _run(source, fields.cls, scope)["flatten"]
        return flatten

    children = [f"self.{name}" for name in fields.data]
    return generate(*children), generate(*(f"(keys[{i}], {child})" for i, child in enumerate(children)))


def generate_rebuild(fields: Fields) -> Function:
    """Generate `rebuild`, from (static, children) to an instance."""
    cls = fields.cls
    if not cls.__dictoffset__ or any(_is_slot(cls, name) for name in (*fields.data, *fields.meta)):
        return _rebuild_with_slots(fields)
    source = _REBUILD_WITH_DICT.format(
        into_attributes="".join(f"attributes[{name!r}], " for name in fields.data),
        remember=f"attributes[{STATIC!r}] = static" if fields.remembers else "",
    )
    # Not through `object.__setattr__`, which would first look the name up in the class.
    set_dict = next(vars(base)["__dict__"].__set__ for base in cls.__mro__ if "__dict__" in vars(base))
    rebuild: Function = _run(source, cls, {"cls": cls, "new": object.__new__, "set_dict": set_dict})["rebuild"]
    return rebuild


def _is_slot(cls: type[Any], name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), types.MemberDescriptorType)


def _rebuild_with_slots(fields: Fields) -> Function:
    """Make `rebuild` for a class that has fields in `__slots__`, for which a loop is as fast as generated code."""
    cls, names = fields.cls, (*fields.data, *fields.meta)

    def rebuild(static: Any, children: Any) -> Any:
        self = object.__new__(cls)
        for name, value in zip(names, (*children, *static.values), strict=True):
            object.__setattr__(self, name, value)
        return self

    return rebuild


def _run(source: str, cls: type[Any], scope: dict[str, Any]) -> dict[str, Any]:
    """Execute a source and return the names that it defines and those of `scope`; tracebacks name the class."""
    names = dict(scope)
    exec(compile(source, f"<treekit layout of {cls.__qualname__}>", "exec"), names)
    return names
