"""Arrays that span several processes: the checks of `processes.py`, in two processes and in four."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.releases import needs

SECONDS = 300  # what hangs is killed
FLAGS = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2"


def run_checks(count: int, folder: Path) -> list[dict[str, tuple[str, Any]]]:
    """Start so many processes; for each of them, return what went wrong with each check, and its answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = [start(address, str(count), str(i), str(folder)) for i in range(count)]
    printed = []
    for process in started:
        try:
            printed.append(process.communicate(timeout=SECONDS))
        except subprocess.TimeoutExpired:
            for each in started:
                each.kill()
            printed.append(process.communicate())
    return [read(output, errors) for output, errors in printed]


def start(*arguments: str) -> subprocess.Popen[str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PJRT_NPROC": processes.THREADS}
    command = [sys.executable, "-W", "error", "-m", processes.__name__, *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def read(output: str, errors: str) -> dict[str, tuple[str, Any]]:
    """Read the lines of a process. A check without one has died, or waits for a process that does not come."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('["')]
    found: dict[str, tuple[str, Any]] = {name: (error, answer) for name, error, answer in lines}
    return {name: found.get(name, (f"no result\n{errors}", None)) for name in processes.CHECKS}


@needs("jax>=0.7")  # in 0.6, on CPUs, two all-reduces of one program may take each other for their own
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes(count: int, tmp_path: Path) -> None:
    done = run_checks(count, tmp_path)
    failures = {f"{name}, process {i}": each[name][0] for i, each in enumerate(done) for name in each if each[name][0]}
    assert not failures, "\n".join(f"{name}\n{error}" for name, error in failures.items())
    for name in processes.CHECKS:
        answers = [each[name][1] for each in done]
        assert answers.count(answers[0]) == count, f"the answers of {name} differ: {answers}"
