"""The package as others get it: the wheel, in an environment of its own, with the source tree out of reach."""

import email
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytest.importorskip("build", reason="build is not installed: pip install --group check")
if not (ROOT / "treekit").exists():
    pytest.skip("these tests run against a wheel, and there is no source to build another", allow_module_level=True)


def run(*command: object, cwd: Path, path: str = "") -> str:
    """What a command prints, with `path` in front of PATH."""
    environment = os.environ | {"PATH": os.pathsep.join([path, os.environ["PATH"]])}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as `build` does it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment `env`, where the wheel is installed and the peers are those of this environment."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # Last in sys.path, and of its own .pth files, such as that of an editable treekit, Python reads none.
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    Path(site, "peers.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_the_wheel_holds_the_sources_and_requires_jax_jaxtyping_numpy_and_wadler_lindig_only(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    files = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = (path for path in (ROOT / "treekit").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert files == {path.relative_to(ROOT).as_posix() for path in sources}
    assert "treekit/py.typed" in files
    metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    always = [line.split(">")[0] for line in required if "extra ==" not in line]
    assert always == ["jax", "jaxtyping", "numpy", "wadler-lindig"]


def test_the_wheel_works_where_the_source_tree_is_out_of_reach(project: Path) -> None:
    code = "import treekit, treekit.optax as o; print(treekit.__file__, o.adam(1e-3).init([1.0, len])[0].mu)"
    file, mu = run(project / "env/bin/python", "-W", "error", "-c", code, cwd=project).split(" ", 1)
    assert Path(file).is_relative_to(project / "env")
    assert mu == "[Array(0., dtype=float32), None]\n"


def test_every_public_type_is_known(project: Path) -> None:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--verifytypes", "treekit", "--ignoreexternal", "--outputjson"]
    report = json.loads(run(*command, cwd=project, path=str(project / "env/bin")))["typeCompleteness"]
    unknown = [symbol["name"] for symbol in report["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert (unknown, report["completenessScore"]) == ([], 1)
    assert report["exportedSymbolCounts"]["withKnownType"] > 300  # it has seen Optax's names
