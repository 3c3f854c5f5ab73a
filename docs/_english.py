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

from proselint.checks import __register__ as PROSELINT

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


# What is not prose: in a page, code, addresses and tags; in Python, names and examples.
MARKUP = [
    r"<style>.*?</style>",
    r"\A---\n.*?^---$",
    r"(?<=\n\n)(    [^\n]*\n)+",
    r"^ *```.*?^ *```$",
    r"<[^>]+>",
    r"(`+)[^`]+\1",
    r"\]\([^)]*\)",
]
EXAMPLES = [r"^ *>>> .*?(?=\n *\n|\Z)", r"`[^`]+`"]


def blank(patterns: list[str], text: str) -> str:
    """Replace what matches by spaces, so that lines keep their numbers."""
    for pattern in [*patterns, r"^:::[^\n]*$"]:
        text = re.sub(pattern, lambda match: re.sub(r"\S", " ", match[0]), text, flags=re.DOTALL | re.MULTILINE)
    return text


def pieces(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file, each piece with its first line: of Python, comments and strings of several words."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, blank(MARKUP, text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], blank(EXAMPLES, token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.count(" ") > 2 and "</" not in node.value:  # which a template of a page has
                yield node.lineno, blank(EXAMPLES, node.value)


def findings(path: Path) -> Iterator[str]:
    """What the rules find in a file, and advise."""
    for first, piece in pieces(path):
        text = f"\n{piece}\n"
        found = [
            (*match.span(), f"write: {advice}")
            for pattern, advice in DROPPED.items()
            for match in re.finditer(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), text, re.IGNORECASE)
        ]
        found += [
            (*result.span, f"{result.message} ({result.check_path})")
            for check in PROSELINT
            if not any(map(check.matches_partial, OFF))
            for result in check.check_with_flags(text)
        ]
        for start, end, advice in found:
            line = first + text.count("\n", 1, max(start, 1))
            yield f"{path}:{line}: {' '.join(text[start:end].split())!r}: {advice}"


def main(arguments: list[str]) -> None:
    roots = [Path(argument) for argument in arguments]
    files = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*.*")))]
    read = [path for path in files if path.suffix in (".md", ".py", ".svg") and path.name != Path(__file__).name]
    found = [finding for path in read for finding in findings(path)]
    print(*found, sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(sys.argv[1:])
