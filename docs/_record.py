"""Runs the examples, and records what their pages show, docs/examples/NAME.txt and NAME.png: `make examples`.

Name some of them to record only these: `python docs/_record.py grow`.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "examples"
NAMES = [path.stem for path in sorted(ROOT.glob("examples/*.py")) if not path.stem.startswith("_")]

if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        print(f"{name} ...", flush=True)
        line = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
        environment = {**os.environ, "PICTURES": str(FOLDER)}
        done = subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        printed = done.stdout.replace(str(FOLDER), "examples").strip("\n")
        (FOLDER / f"{name}.txt").write_text(f"{printed}\n", encoding="utf-8")
