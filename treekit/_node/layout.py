"""Flatten and rebuild the instances of every class that treekit registers."""

import contextlib
import dataclasses
import textwrap
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from types import SimpleNamespace
from typing import Any

import jax

from treekit._base.jax import jtu
from treekit._base.layouts import LAYOUT, layout_of
from treekit._node.allowed import already_a_node, is_slot, undeclared
from treekit._node.creation import Creation
from treekit._node.pickling import attributes_of, copies_in_its_own_way, deepcopy_node
from treekit._node.static import STATIC, Interned, StaticFields


class Layout:
    """The fields of a class, and the functions that flatten and rebuild its instances.

    Attributes:
        cls: the class.
        names: the names of its fields, in order.
        meta: the static fields.
        data: the other fields, which are children.
        dropped: attributes that are not fields, and that an instance may have.
        slots: the `__slots__` of the class and its bases.
        creation: how instances of a class made by `@node` are created; None for `register_node`.
        remembers: whether instances cache their static part, which only frozen ones can.
        intern: from the values of the static fields to their `StaticFields`.
        flatten: from an instance to (children, static).
        flatten_with_keys: from an instance to (pairs of key path entry and child, static).
        rebuild: from (static, children) to an instance.
    """

    def __init__(
        self,
        cls: type[Any],
        names: Sequence[str],
        meta: Collection[str],
        creation: Creation | None,
        dropped: Collection[str] = (),
    ) -> None:
        self.cls = cls
        self.names = tuple(names)
        self.meta = tuple(name for name in names if name in meta)
        self.data = tuple(name for name in names if name not in meta)
        self.dropped = tuple(dropped)
        self.slots = frozenset(name for base in cls.__mro__ for name in vars(base) if is_slot(cls, name))
        self.creation = creation
        self.remembers = creation is not None and creation.remembers and bool(meta)
        self.intern = Interned(cls, self.names, self.meta, remembers=self.remembers).get
        self.flatten, self.flatten_with_keys = generate_flatten(self)
        self.rebuild = _with_defaults(self, generate_rebuild(self))

    def read_static(self, x: object) -> StaticFields:
        """Return the static part of an instance."""
        return self.intern(tuple([getattr(x, name) for name in self.meta]))

    def freeze_attributes(self, x: object) -> StaticFields:
        """Store an instance's attributes as `rebuild` does: in a new dict, with the values of its `StaticFields`."""
        static = self.read_static(x)
        attributes = {**vars(x), **dict(zip(self.meta, static.values, strict=True))}
        if self.remembers:
            attributes[STATIC] = static
        object.__setattr__(x, "__dict__", attributes)
        return static

    def check_fields_are_set(self, x: object, error: AttributeError) -> None:
        """Raise a TypeError if an instance could not be flattened because a field is not set."""
        for field in self.names:
            if not hasattr(x, field):
                name = self.cls.__qualname__
                raise TypeError(
                    f"{name}.{field} is not set, so this {name} cannot be flattened. Set every field when creating it, "
                    "if only to None"
                ) from error

    def check_attributes_are_fields(self, x: object) -> None:
        """Raise a TypeError if an instance has an attribute that rebuilding it would lose."""
        for name in undeclared(self.cls, (*self.names, *self.dropped), attributes_of(x)):
            raise TypeError(
                f"{self.cls.__qualname__}.{name} is neither in data_fields nor in meta_fields of register_node, so it "
                "would be lost when JAX rebuilds the instance. Name it in one of them; or in drop_fields, if it may be "
                "lost"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # The layout of a class pickled by value is registered again in the process that loads it.
        return register, (self.cls, self.names, self.meta, self.creation, self.dropped)


def register(
    cls: type[Any],
    names: Sequence[str],
    meta: Collection[str],
    creation: Creation | None,
    dropped: Collection[str] = (),
) -> Layout:
    """Register a class as a pytree node, unless treekit has, and return its layout. Use it in `rollback_on_error`."""
    with registering:
        known: Layout | None = layout_of(cls)
        if known:
            return known
        layout = Layout(cls, names, meta, creation, dropped)
        if creation is None and not copies_in_its_own_way(cls):
            cls.__deepcopy__ = deepcopy_node
        setattr(cls, LAYOUT, layout)
        setattr(cls, STATIC, SimpleNamespace(owner=None, values=()))  # of instances that have cached none yet
        try:
            jtu.register_pytree_with_keys(cls, layout.flatten_with_keys, layout.rebuild, layout.flatten)
        except ValueError as error:
            raise already_a_node(cls, "JAX") from error
        return layout


registering = threading.RLock()


@contextlib.contextmanager
def rollback_on_error(cls: type[Any]) -> Generator[None]:
    """Undo all changes to a class if making it a node fails; only one thread runs this at a time."""
    with registering:
        before = dict(vars(cls))
        try:
            yield
        except BaseException:
            for name in vars(cls).keys() - before.keys():
                type.__delattr__(cls, name)
            for name, value in before.items():
                if vars(cls).get(name) is not value:
                    type.__setattr__(cls, name, value)
            raise


_FLATTEN = """
def flatten(self):
    {check}
    try:
{read_static}
        return ({children}), static
    except AttributeError as error:
        check_fields_are_set(self, error)
        raise
"""

# The cached static part is not used if a value can change, if the instance was changed through `object.__setattr__`, or
# if IPython's %autoreload has set its `__class__`.
_READ_REMEMBERED = """
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


def generate_flatten(layout: Layout) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Generate `flatten`, from an instance to (children, static), and `flatten_with_keys`."""
    scope: dict[str, Any] = {
        "cls": layout.cls,
        "keys": tuple(jax.tree_util.GetAttrKey(name) for name in layout.data),
        "check_fields_are_set": layout.check_fields_are_set,
        "read_static": layout.read_static,
        "freeze_attributes": layout.freeze_attributes,
        "check_attributes_are_fields": layout.check_attributes_are_fields,
        "attributes_of": attributes_of,
        "names": frozenset((*layout.names, *layout.dropped)),
    }
    check = ""  # of instances that `node` creates, the attributes are checked then
    if layout.creation is None:
        stored = (
            "attributes_of(self)"
            if layout.slots.difference(layout.names, layout.dropped)
            else "self.__dict__"
            if layout.cls.__dictoffset__
            else "()"
        )
        check = f"if not names.issuperset({stored}): check_attributes_are_fields(self)"
    if layout.remembers:
        changed = " or ".join(f"values[{i}] is not self.{name}" for i, name in enumerate(layout.meta))
        read_static = _READ_REMEMBERED.format(STATIC=STATIC, changed=changed)
    elif layout.meta:
        read_static = "static = read_static(self)"
    else:
        read_static = "static = empty"
        scope["empty"] = layout.intern(())

    def generate(*children: str) -> Callable[..., Any]:
        lines = textwrap.indent(read_static, " " * 8)
        source = _FLATTEN.format(check=check, read_static=lines, children="".join(f"{child}, " for child in children))
        return _run(source, "flatten", layout.cls, scope)

    children = [f"self.{name}" for name in layout.data]
    return generate(*children), generate(*(f"(keys[{i}], {child})" for i, child in enumerate(children)))


def generate_rebuild(layout: Layout) -> Callable[..., Any]:
    """Generate `rebuild`, from (static, children) to an instance."""
    cls, names = layout.cls, (*layout.data, *layout.meta)
    if not cls.__dictoffset__ or any(is_slot(cls, name) for name in names):

        def rebuild(static: Any, children: Any) -> Any:  # a loop is as fast as generated code here
            self = object.__new__(cls)
            for name, value in zip(names, (*children, *static.values), strict=True):
                object.__setattr__(self, name, value)
            return self

        return rebuild
    source = _REBUILD_WITH_DICT.format(
        into_attributes="".join(f"attributes[{name!r}], " for name in layout.data),
        remember=f"attributes[{STATIC!r}] = static" if layout.remembers else "",
    )
    # Not through `object.__setattr__`, which would first look the name up in the class.
    set_dict = next(vars(base)["__dict__"].__set__ for base in cls.__mro__ if "__dict__" in vars(base))
    return _run(source, "rebuild", cls, {"cls": cls, "new": object.__new__, "set_dict": set_dict})


def _with_defaults(layout: Layout, rebuild: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `rebuild` that gives the instance the defaults of the fields of a dataclass that are dropped."""
    fields = dataclasses.fields(layout.cls) if dataclasses.is_dataclass(layout.cls) else ()
    dropped = [f for f in fields if f.name in layout.dropped]
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
