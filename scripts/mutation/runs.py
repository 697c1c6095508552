"""Runs of pytest in copies of the tree, each watched: one process group, two cores, a limit of time for every test."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

#: What is left out of copies.
LITTER = shutil.ignore_patterns(
    ".git", ".venv", "out", "build", "dist", "*.egg-info", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"
)
#: Seconds that a test may take beyond ten times what it took unchanged: its share of importing, compiling, waiting.
PATIENCE = 60.0
#: Bytes of address space of a process: a mutated size must not bring the machine down.
MEMORY = 24 << 30


@dataclass
class Run:
    """How one run of pytest ended."""

    outcome: str  #: "passed", "failed" (a test, or the import), "crashed", "timeout"
    test: str = ""  #: the test that ended it
    seconds: float = 0.0
    tests: dict[str, tuple[str, float]] = field(default_factory=dict)  #: outcome and seconds of those that ended
    output: str = ""


def copy_tree(source: Path, target: Path) -> None:
    """A copy that shares unchanged files with ``source`` where the file system can."""
    shutil.copytree(source, target, ignore=LITTER, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def replace(tree: Path, file: str, text: str) -> None:
    """Write one file of a linked copy, leaving the original as it is."""
    path = tree / file
    path.unlink()
    path.write_text(text, encoding="utf-8")
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        cached.unlink()


def run(
    tree: Path,
    files: list[str],
    slot: int,
    *,
    tests: list[str] | None = None,
    skip: list[str] | None = None,
    seconds: dict[str, float] | None = None,
    stop: bool = True,
    patience: float = PATIENCE,
    environment: dict[str, str] | None = None,
) -> Run:
    """Run ``tests`` of ``files`` (all but ``skip`` if None) in ``tree``, in this order, until one fails if ``stop``.

    ``seconds`` are those that the tests took before; ``slot`` numbers the runs at the same time.
    """
    side = tree.with_name(tree.name + "-run")
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir()
    record = side / "record"
    record.touch()
    job = side / "job.json"
    job.write_text(json.dumps({"tests": tests, "skip": skip or [], "record": str(record)}))
    env = dict(os.environ, COOPNET_MUTATION=str(job), CUDA_VISIBLE_DEVICES="-1") | (environment or {})
    paths = [(environment or {}).get("PYTHONPATH"), str(tree), str(Path(__file__).parent.parent)]
    env["PYTHONPATH"] = os.pathsep.join(p for p in [*paths, os.environ.get("PYTHONPATH")] if p)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutation.plugin", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-o", "addopts=", f"--basetemp={side / 'tmp'}", *(["-x"] if stop else []), *files]
    start = time.monotonic()
    with open(side / "output", "wb") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        _confine(process.pid, slot)
        late = _watch(process, record, seconds or {}, patience)
    rows = _rows(record)
    result = Run("passed", seconds=round(time.monotonic() - start, 2))
    result.tests = {r[1]: (r[2], r[3]) for r in rows if r[0] == "end"}
    result.output = (side / "output").read_text(errors="replace")[-4000:]
    begun = [r[1] for r in rows if r[0] == "start"]
    failed = [name for name, (outcome, _) in result.tests.items() if outcome == "failed"]
    unfinished = [name for name in begun if name not in result.tests]
    if late:
        result.outcome, result.test = "timeout", (unfinished or [""])[-1]
    elif failed:
        result.outcome, result.test = "failed", failed[0]
    elif process.returncode < 0 or unfinished:
        result.outcome, result.test = "crashed", (unfinished or [""])[-1]
    elif process.returncode not in (0, 5):
        result.outcome = "failed"  # at import
    shutil.rmtree(side, ignore_errors=True)
    return result


def _confine(pid: int, slot: int) -> None:
    """Two cores and a bounded memory, before the process has started threads."""
    with contextlib.suppress(OSError, AttributeError):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(pid, {cores[slot % len(cores)], cores[(slot + 1) % len(cores)]})
    with contextlib.suppress(OSError, AttributeError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY, MEMORY))


def _watch(process: subprocess.Popen, record: Path, seconds: dict[str, float], patience: float) -> bool:
    """Wait for the process; True if it had to be ended because a test took too long."""
    size, since, limit = 0, time.monotonic(), 2 * patience
    try:
        while True:
            try:
                process.wait(0.25)
                return False
            except subprocess.TimeoutExpired:
                pass
            if record.stat().st_size != size:
                size, since = record.stat().st_size, time.monotonic()
                name = _rows(record)[-1][1]
                limit = patience + 10 * seconds.get(str(name), 0.0)
            elif time.monotonic() - since > limit:
                return True
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # and whatever tests left behind
        process.wait()


def _rows(record: Path) -> list[list]:
    rows: list[list] = [["", ""]]
    for line in record.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # still being written
            rows.append(json.loads(line))
    return rows
