"""What a compiled program does, read from its optimized HLO: `compiled.as_text()`."""

import collections
import math
import re
from collections.abc import Iterator

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*?\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", re.MULTILINE)
ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
NAME = re.compile(r"%([\w.\-]+)")
INSIDE = re.compile(  # of an operation with branches by number, the last
    r"(?:body|true_computation)=%?([\w.\-]+)|branch_computations=\{[^}]*?%?([\w.\-]+)\}"
)
COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)"
    r"(?:-start)?\("
)
# These move nothing, or what they move is counted elsewhere.
SILENT = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "iota", "after-all"}
COPIES = {"copy", "copy-start"}


def bytes_moved(text: str) -> int:
    """The bytes that a program reads from memory and writes to it, outside of its loops and branches."""
    return _moved(_entry(text))


def bytes_moved_inside(text: str) -> int:
    """The same for one turn of each of its loops, and for the branches that it takes where a flag is true.

    Without the loops and branches inside of these.
    """
    bodies = {name: body for _, name, body in COMPUTATION.findall(text)}
    inside = ["".join(names) for names in INSIDE.findall(_entry(text))]
    return sum(_moved(bodies[name]) for name in inside)


def of_accepted(text: str) -> int:
    """Both together: what a step moves that `apply_if_finite` accepts, which then runs its loop or branch."""
    return bytes_moved(text) + bytes_moved_inside(text)


def bytes_copied(text: str) -> int:
    """Those of `bytes_moved` that copies move from one place in memory to another."""
    copies = [arrays for kind, arrays in _operations(_entry(text)) if kind in COPIES]
    return sum(sum(map(_bytes, arrays)) for arrays in copies if not any("S(" in array for array in arrays))


def collectives(text: str) -> dict[str, int]:
    """How often a program communicates between devices, by the kind of communication."""
    return dict(sorted(collections.Counter(COLLECTIVE.findall(text)).items()))


def difference(text: str, other: str) -> str:
    """Which operations two programs do not have in common, by kind; "" where they have the same."""
    one, two = (collections.Counter(kind for _, _, kind, _ in OPERATION.findall(x)) for x in (text, other))
    changes = {kind: one[kind] - two[kind] for kind in sorted({*one, *two} - SILENT)}
    return ", ".join(f"{count:+} {kind}" for kind, count in changes.items() if count)


def _entry(text: str) -> str:
    bodies: list[str] = [body for is_entry, _, body in COMPUTATION.findall(text) if is_entry]
    (entry,) = bodies
    return entry


def _moved(body: str) -> int:
    return sum(_bytes(x) for _, arrays in _operations(body) for x in arrays)


def _operations(body: str) -> Iterator[tuple[str, list[str]]]:
    """The kind of each that moves memory, such as "fusion", and the shapes of its results and operands."""
    shapes: dict[str, str] = {}
    for name, shape, kind, rest in OPERATION.findall(body):
        shapes[name] = shape
        if kind in SILENT or kind.endswith("-done"):  # the start of an asynchronous operation is counted
            continue
        if kind == "slice-start":  # its result is its operand, all of it, and the slice, of which alone it moves
            dtype, lengths, layout = ARRAY.findall(shape)[1]
            yield kind, [f"{dtype}[{lengths}]", f"{dtype}[{lengths}]{layout}"]
            continue
        result = shape.partition("}")[0] + "}" if kind.endswith("-start") else shape  # it repeats its operand
        operands = NAME.findall(rest.partition("), ")[0])
        yield kind, [result, *(shapes[x] for x in operands)]


def _bytes(shape: str) -> int:
    """Of all arrays in a shape; those in the memory of the chip itself, S(1) and others, move nothing."""
    return sum(
        math.prod(map(int, filter(None, lengths.split(",")))) * _bits(dtype) // 8
        for dtype, lengths, layout in ARRAY.findall(shape)
        if "S(" not in layout
    )


def _bits(dtype: str) -> int:
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8  # pred
