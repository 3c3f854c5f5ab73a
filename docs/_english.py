"""Check the English of files: pages, drawings, and the docstrings, comments and messages of Python modules.

    python docs/_english.py README.md docs treekit

The rules are those of proselint, and the list below of words and phrases that this project has dropped.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# A pattern that must not occur, and what to write.
DROPPED = {
    r"mend(s|ed|ing)?": "fix",
    r"without a word|says? nothing": "silently",
    r"(?<!there\s)(is|are|was|were) no(?! longer)": "is not a",
    r"(is|are|was|were) (?-i:none)": "is not",
    r"at hand": "available",
    r"hand(s|ed|ing)? (it |them )?(back|on|out)": "return, or pass on",
    r"go(es)? on \w+ing": "still",
    r"tells? (\w+ ){1,4}(apart|from)|told (apart|from)|tells? of": "distinguish, or say",
    r"in the place of|in (its|their) places?": "instead of",
    r"com(es|ing) upon": "fails on",
    r"stands? (at|in|inside|outside|there)": "is, or put",
    r"steps? that holds?|while it holds": "step that only accumulates",
    r"no turns|turns or one": "run zero times",
    r"right on average": "without bias",
    r"anew": "again",
    r"all else": "everything else",
    r"beside": "next to, compared with, or besides",
    r"cures?": "solution",
    r"what [^.:]* is what": "a sentence without a riddle",
    r"is as good as": "works like",
}

# Rules of proselint that are not for technical text, with the reason.
OFF = {
    "restricted": "allows a thousand common words only, and is off by default",
    "typography.symbols": "source files have straight quotes, and three dots are code",
    "typography.diacritical_marks": "to resume is a verb here",
    "lexical_illusions": "a word is repeated where the code between the two was left out",
}


class Finding(NamedTuple):
    line: int
    found: str
    advice: str


def findings(path: Path) -> Iterator[Finding]:
    """What the rules find in a file, by line."""
    text = path.read_text(encoding="utf-8")
    for line, piece in PIECES[path.suffix](text):
        for start, found, advice in matches(f"\n{piece}\n"):
            yield Finding(line + piece.count("\n", 0, max(start - 1, 0)), " ".join(found.split()), advice)


def matches(text: str) -> Iterator[tuple[int, str, str]]:
    from proselint.checks import __register__ as PROSELINT  # here, since the tests of this file run without it

    for pattern, advice in DROPPED.items():
        for match in re.finditer(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), text, re.IGNORECASE):
            yield match.start(), match[0], f"write: {advice}"
    for check in PROSELINT:
        if not any(check.matches_partial(rule) for rule in OFF):
            for result in check.check_with_flags(text):
                yield result.span[0], text[slice(*result.span)], f"{result.message} ({result.check_path})"


def blank(pattern: str, text: str) -> str:
    """Replace what matches by spaces, so that lines keep their numbers."""
    return re.sub(pattern, lambda match: re.sub(r"\S", " ", match[0]), text, flags=re.DOTALL | re.MULTILINE)


def markdown_prose(text: str) -> str:
    """A page without its code, addresses and tags."""
    front_matter, indented, fences = r"\A---\n.*?^---$", r"(?<=\n\n)(    [^\n]*\n)+", r"^```.*?^```$"
    for pattern in (front_matter, indented, fences, r"<[^>]+>", r"(`+)[^`]+\1", r"\]\([^)]*\)", r"^:::[^\n]*$"):
        text = blank(pattern, text)
    return text


def python_pieces(source: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and other strings of several words, each with its first line; examples left out."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], blank(r"`[^`]+`", token.string)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_prose(node.value):
            yield node.lineno, blank(r"^ *>>> .*?(?=\n *\n|\Z)|`[^`]+`", node.value)


def drawing_pieces(source: str) -> Iterator[tuple[int, str]]:
    """What is written in a drawing, line by line."""
    for match in re.finditer(r"<(?:text|title)[^>]*>([^<]+)", source):
        yield source.count("\n", 0, match.start()) + 1, match[1]


PIECES = {".md": lambda text: [(1, markdown_prose(text))], ".py": python_pieces, ".svg": drawing_pieces}


def is_prose(text: str) -> bool:
    """Several words, and not a template of a page."""
    return text.count(" ") > 2 and "</" not in text


def main(arguments: list[str]) -> None:
    roots = [Path(argument) for argument in arguments]
    files = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*.*")))]
    found = [
        (path, finding)
        for path in files
        if path.suffix in PIECES and path.name != "_english.py"
        for finding in findings(path)
    ]
    for path, finding in found:
        print(f"{path}:{finding.line}: {finding.found!r}: {finding.advice}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(sys.argv[1:])
