"""The comparison: libraries (*peers*) take turns, one at a time, and medians are compared."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import backend as backends
from ..checks import check_int, check_number
from .problem import DEPTH, N_IN, N_OUT
from .worker import PREFIX

MODES = ("infer", "train")
ROUNDS = 3
#: With fewer calls than these, or a larger spread, a median says little.
FEW, WIDE = 10, 0.5
AGAIN = "Compare again while nothing else runs, or for longer."
PATIENCE = 300.0  #: seconds after which a peer that has not answered is given up
NAMES = ("coopnet", "drjit.nn, vectors", "drjit.nn, tensors", "PyTorch")
BATCH = {"llvm": 1 << 16, "cuda": 1 << 20}


def compare(
    backend: str = "auto",
    width: int = 64,
    batch: int | None = None,
    seconds: float = 60.0,
    say: Callable[[str], Any] = lambda text: None,
) -> dict[str, Any]:
    """Measure inference and a training step (forward, loss, weight gradients) of one network in every library here.

    Every peer has a process of its own, warms up, and is then called in three turns with the others; a figure is the
    median of all calls. Functions of Dr.Jit are measured frozen and not, and the faster one counts, for every peer
    alike. Weight gradients are compared with NumPy's in double precision, so that a fast wrong answer is noticed.

    Args:
        backend: ``"auto"``, ``"llvm"`` or ``"cuda"``.
        width: of the hidden layers of 16 -> w -> w -> w -> 3.
        batch: number of samples; 2^16 on LLVM and 2^20 on CUDA if ``None``.
        seconds: approximate time for all calls together; compiling comes on top.
        say: called with a line of progress now and then.

    Returns:
        A dictionary that JSON can hold: ``"machine"``, ``"settings"``, ``"results"`` (a row for each peer and mode:
        ``"ms"``, ``"way"``, ``"calls"``, ``"spread"``, the interquartile range divided by the median, ``"ratio"`` to
        coopnet, ``"gradient_error"``) and ``"left_out"``, peers with the reason.

    Raises:
        ValueError: arguments out of range.
        BackendError: no such backend here.
    """
    width = check_int("compare", "width", width, 1, 1024)
    seconds = check_number("compare", "seconds", seconds, 0)
    backend = backends.require(backend)
    batch = BATCH[backend] if batch is None else check_int("compare", "batch", batch, 1, 2**24)
    workers: dict[str, Worker] = {}
    left_out: dict[str, str] = {}
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    errors: dict[str, dict[str, float]] = {}

    @contextmanager
    def asked(name: str) -> Iterator[Worker]:
        """A block that sends jobs to a peer. If the peer fails, it is left out from then on."""
        try:
            yield workers[name]
        except PeerError as error:
            left_out[name] = str(error)
            workers.pop(name).close()

    try:
        for name in NAMES:
            if name == "PyTorch" and not has_torch():
                left_out[name] = "not installed"
                continue
            workers[name] = Worker()
            say(f"preparing {name}")
            with asked(name) as worker:
                worker.ask(job="start", peer=name, backend=backend, width=width, batch=batch)
                for mode in MODES:  # compiles
                    worker.ask(job="turn", mode=mode, seconds=0.0)
                errors[name] = worker.ask(job="gradient_errors")
        # ways to call are timed one by one: two for each peer that uses Dr.Jit
        share = seconds / (ROUNDS * len(MODES) * max(1, sum(1 if name == "PyTorch" else 2 for name in workers)))
        for turn in range(ROUNDS):
            for mode in MODES:
                say(f"turn {turn + 1} of {ROUNDS}, {mode}")
                for name in list(workers):
                    with asked(name) as worker:
                        for way, values in worker.ask(job="turn", mode=mode, seconds=share).items():
                            times.setdefault((name, mode), {}).setdefault(way, []).extend(values)
    finally:
        for worker in workers.values():
            worker.close()
    results = [_row(name, mode, times[name, mode], errors.get(name, {})) for name in workers for mode in MODES]
    for row in results:
        ours = next((r["ms"] for r in results if r["peer"] == "coopnet" and r["mode"] == row["mode"]), None)
        row["ratio"] = row["ms"] / ours if ours else None
    network = f"{N_IN} -> {' -> '.join([str(width)] * DEPTH)} -> {N_OUT}, ReLU, no bias"
    precision = "half" if backend == "cuda" else "single"
    settings = {"network": network, "batch": batch, "precision": precision, "seconds": seconds, "rounds": ROUNDS}
    return {"machine": machine(backend), "settings": settings, "results": results, "left_out": left_out}


def has_torch() -> bool:
    """Is PyTorch installed?"""
    return importlib.util.find_spec("torch") is not None


def _row(name: str, mode: str, ways: dict[str, list[float]], errors: dict[str, float]) -> dict[str, Any]:
    """The row of the results for the faster way to call a peer."""
    way, values = min(ways.items(), key=lambda item: statistics.median(item[1]))
    middle = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (middle, middle, middle)
    row = {"peer": name, "mode": mode, "ms": middle, "way": way, "calls": len(values), "spread": (high - low) / middle}
    return row | {"gradient_error": errors[way] if mode == "train" else None}


def machine(backend: str) -> dict[str, Any]:
    """Processor, GPU, versions and date, to be printed with all figures."""
    report = backends.as_json(backends.info())
    rows = {what: row["finding"] for what, row in report["found"].items() if any(w in what for w in ("LLVM", "GPU"))}
    versions = {name: version for name, version in report["packages"].items() if version}
    versions = {name: versions[name] for name in ("drjit", "numpy", "torch") if name in versions}
    return {
        "backend": backend, "processor": processor(), "cores": os.cpu_count(), "found": rows,
        "python": platform.python_version(), "versions": {"coopnet": report["coopnet"]} | versions,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }  # fmt: skip


def processor() -> str:
    """The name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def format_comparison(comparison: dict[str, Any]) -> str:
    """The result of :func:`compare` as text: a table, the machine, and an explanation of the figures."""
    settings, where = comparison["settings"], comparison["machine"]
    lines = [f"{settings['network']}; {settings['batch']} samples, {settings['precision']} precision"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    gpu = where["found"].get("GPU", "none")
    lines += [f"{where['processor']}, {where['cores']} cores{'' if gpu == 'none' else f'; {gpu}'}"]
    lines += [f"{where['backend'].upper()}; Python {where['python']}, {versions}; {where['date']}", ""]
    titles = {"infer": "inference", "train": "training step"}
    lines.append(f"{'':<20}{'ms':>9}  {'by coopnet':>10}  {'spread':>7}  {'gradients off by':>16}  measured")
    for mode in MODES:
        lines.append(titles[mode])
        for row in comparison["results"]:
            if row["mode"] == mode:
                ratio = f"{row['ratio']:.2f}x" if row["ratio"] else "-"
                error = "" if row["gradient_error"] is None else f"{row['gradient_error']:.1e}"
                start = f"  {row['peer']:<18}{row['ms']:>9.3g}  {ratio:>10}  {100 * row['spread']:>5.0f} %"
                lines.append(f"{start}  {error:>16}  {row['way']}, {row['calls']} calls")
    for name, why in comparison["left_out"].items():
        lines.append(f"  {name}: left out, {why}")
    unsteady = sorted({r["peer"] for r in comparison["results"] if r["calls"] < FEW or r["spread"] > WIDE})
    if unsteady:
        lines += ["", f"Too few calls, or too wide a spread, to rely on: {'; '.join(unsteady)}.", AGAIN]
    lines += [
        "",
        "Medians; 'by coopnet' is how many times as long as coopnet, so that below 1x the other one is faster. The",
        "spread is that between quartiles. A training step is forward, L2 loss and weight gradients, no optimizer.",
    ]
    return "\n".join(lines)


class PeerError(Exception):
    """A peer failed, or its process is gone."""


class Worker:
    """A peer's process."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coopnet.bench.worker"],
            env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1,
        )  # fmt: skip

    def ask(self, **job: Any) -> Any:
        """The answer of the peer; raises :class:`PeerError`."""
        assert self.process.stdin and self.process.stdout
        timer = threading.Timer(PATIENCE, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line.startswith(PREFIX):
            raise PeerError(
                f"its process ended with {self.process.wait(10)}, or did not answer for {PATIENCE:g} seconds"
            )
        answer = json.loads(line[len(PREFIX) :])
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()
