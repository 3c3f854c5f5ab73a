"""How the example programs end, and where they put their pictures. Each imports this before anything else.

What stops a program is said in one sentence: ctrl-C, a package that is not installed, a folder that cannot be written.
"""

import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any


def picture_of(program: str) -> Path:
    """The path of a program's picture: next to the program, or in the folder that PICTURES names."""
    path = Path(program).with_suffix(".png")
    return Path(os.environ["PICTURES"]) / path.name if "PICTURES" in os.environ else path


def check_folder(path: Path) -> None:
    """Exit if no picture can be written there, before anything is trained."""
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        sys.exit(f"The picture cannot be written to {path.parent} ({error.strerror}): name a folder with PICTURES=...")


def save(figure: Any, path: Path) -> None:
    """Write a picture of 64 colours, which is small, and only once it is complete."""
    from PIL import Image

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        figure.savefig(Path(folder) / path.name)
        with Image.open(Path(folder) / path.name) as image:
            image.convert("RGB").quantize(64).save(Path(folder) / "small.png", optimize=True)
        os.replace(Path(folder) / "small.png", path)


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        print("\nStopped: nothing was saved.", file=sys.stderr)
    elif isinstance(error, ModuleNotFoundError):
        print(
            f"{error.name} is not installed: `make demo` installs what the examples need, and so does "
            "`pip install -e '.[optax]' --group examples` in the folder above.",
            file=sys.stderr,
        )
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _tell
