"""Generate functions that flatten and rebuild the instances of a class: they are faster than a loop over its fields.

For a `@node` with the fields `weight` and `bias`, and the static field `name`, they are

    def flatten(self):
        try:
            static = self.__treekit_static__
            values = static.values
            if static.owner is not cls or values[0] is not self.name:
                static = freeze_attributes(self)
            return (self.weight, self.bias, ), static
        except AttributeError as error:
            check_fields_are_set(self, error)
            raise

    def rebuild(static, children):
        self = new(cls)
        attributes = static.template.copy()  # {"weight": None, "bias": None, "name": "out", ...}
        (attributes["weight"], attributes["bias"], ) = children
        attributes["__treekit_static__"] = static
        set_dict(self, attributes)
        return self

and `flatten_with_keys`, in which `(keys[0], self.weight)` is in place of `self.weight`. Instances of `register_node`
may change, so nothing is cached: `static = read_static(self)`. Their attributes are checked first, which `@node` does
when it creates one: `if not names.issuperset(self.__dict__): check_attributes_are_fields(self)`.
"""

import dataclasses
import textwrap
from collections.abc import Callable
from typing import Any

import jax

from treekit._node.allowed import is_slot
from treekit._node.field_names import FieldNames
from treekit._node.pickling import attributes_of
from treekit._node.static import STATIC

_FLATTEN = """
def flatten(self):
    {check}
    try:
{set_static}
        return ({children}), static
    except AttributeError as error:
        check_fields_are_set(self, error)
        raise
"""

# The cached static part is not used if a value can change, if the instance was changed through `object.__setattr__`, or
# if IPython's %autoreload has set its `__class__`.
_SET_REMEMBERED = """
static = self.{STATIC}
values = static.values
if static.owner is not cls or {changed}:
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


def generate_flatten(fields: FieldNames) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Generate `flatten`, from an instance to (children, static), and `flatten_with_keys`."""
    scope: dict[str, Any] = {
        "cls": fields.cls,
        "keys": tuple(jax.tree_util.GetAttrKey(name) for name in fields.data),
        "check_fields_are_set": fields.check_fields_are_set,
        "read_static": fields.read_static,
        "freeze_attributes": fields.freeze_attributes,
        "check_attributes_are_fields": fields.check_attributes_are_fields,
        "attributes_of": attributes_of,
        "names": frozenset((*fields.names, *fields.dropped)),
    }
    check = ""
    if fields.creation is None:
        check = f"if not names.issuperset({_stored(fields)}): check_attributes_are_fields(self)"
    if fields.remembers:
        changed = " or ".join(f"values[{i}] is not self.{name}" for i, name in enumerate(fields.meta))
        set_static = _SET_REMEMBERED.format(STATIC=STATIC, changed=changed)
    elif fields.meta:
        set_static = "static = read_static(self)"
    else:
        set_static = "static = empty"
        scope["empty"] = fields.intern(())

    def generate(*children: str) -> Callable[..., Any]:
        lines = textwrap.indent(set_static, " " * 8)
        source = _FLATTEN.format(check=check, set_static=lines, children="".join(f"{child}, " for child in children))
        return _run(source, "flatten", fields.cls, scope)

    children = [f"self.{name}" for name in fields.data]
    return generate(*children), generate(*(f"(keys[{i}], {child})" for i, child in enumerate(children)))


def _stored(fields: FieldNames) -> str:
    """Return the expression for the attributes of an instance, where some of them may not be fields."""
    if fields.slots.difference(fields.names, fields.dropped):  # not all slots are for fields
        return "attributes_of(self)"
    return "self.__dict__" if fields.cls.__dictoffset__ else "()"


def generate_rebuild(fields: FieldNames) -> Callable[..., Any]:
    """Generate `rebuild`, from (static, children) to an instance, with the defaults of fields that are dropped."""
    return _with_defaults(fields, _rebuild_fields(fields))


def _rebuild_fields(fields: FieldNames) -> Callable[..., Any]:
    cls, names = fields.cls, (*fields.data, *fields.meta)
    if not cls.__dictoffset__ or any(is_slot(cls, name) for name in names):

        def rebuild(static: Any, children: Any) -> Any:  # a loop is as fast as generated code here
            self = object.__new__(cls)
            for name, value in zip(names, (*children, *static.values), strict=True):
                object.__setattr__(self, name, value)
            return self

        return rebuild
    source = _REBUILD_WITH_DICT.format(
        into_attributes="".join(f"attributes[{name!r}], " for name in fields.data),
        remember=f"attributes[{STATIC!r}] = static" if fields.remembers else "",
    )
    # Not through `object.__setattr__`, which would first look the name up in the class.
    set_dict = next(vars(base)["__dict__"].__set__ for base in cls.__mro__ if "__dict__" in vars(base))
    return _run(source, "rebuild", cls, {"cls": cls, "new": object.__new__, "set_dict": set_dict})


def _with_defaults(fields: FieldNames, rebuild: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `rebuild` that gives the instance the defaults of the fields of a dataclass that are dropped."""
    declared = dataclasses.fields(fields.cls) if dataclasses.is_dataclass(fields.cls) else ()
    dropped = [f for f in declared if f.name in fields.dropped]
    defaults = {f.name: f.default for f in dropped if f.default is not dataclasses.MISSING}
    factories = {f.name: f.default_factory for f in dropped if f.default_factory is not dataclasses.MISSING}
    if not (defaults or factories):
        return rebuild

    def rebuild_with_defaults(static: Any, children: Any) -> Any:
        self = rebuild(static, children)
        for name, value in (defaults | {name: make() for name, make in factories.items()}).items():
            object.__setattr__(self, name, value)
        return self

    return rebuild_with_defaults


def _run(source: str, name: str, cls: type[Any], scope: dict[str, Any]) -> Callable[..., Any]:
    """Execute a source that defines a function of this name, and return it; tracebacks name the class."""
    names = dict(scope)
    exec(compile(source, f"<treekit layout of {cls.__qualname__}>", "exec"), names)
    out: Callable[..., Any] = names[name]
    return out
