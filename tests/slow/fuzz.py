"""Every public callable with hostile arguments, for as many calls or seconds as wanted, in processes that may die.

    PYTHONPATH=. python tests/slow/fuzz.py --calls 10000 --seed 1 2
    PYTHONPATH=. python tests/slow/fuzz.py --seed 1 --only 4711     # one call again, with its traceback

Calls are made by workers with little memory. One that dies, or does not answer within :data:`LIMIT` seconds, is
recorded as an abort or a hang, and another one goes on with the next call. Seconds are those that processors work for
it, so that a busy machine makes no hangs; :data:`WAITING` times as many by the clock end one that waits for nothing.
Prints the figures of each seed and all that is unclear, and writes the sums of all seeds to
``benchmarks/results/fuzz-<backend>.json``.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "benchmarks"), str(HERE.parents[2])]

#: Seconds of processors that a call may take.
LIMIT = 10
#: Seconds of processors that a worker may take to start.
START = 120
#: How many times as long both may take by the clock.
WAITING = 12
#: What may come of a call.
KINDS = ("returned", "clear errors", "unclear errors", "aborts", "hangs")
#: Bytes of address space of a worker.
MEMORY = 12 << 30


def worker(backend: str, seed: int, first: int, last: int, alone: bool) -> None:
    """Make the calls ``first`` to ``last - 1``; one line before and one after each."""
    from support import hostile

    from coopnet.backend import namespace

    ns = namespace(backend)
    calls, values = hostile.targets(ns), hostile.values(ns)
    labels = sorted(values)
    if not alone:
        _limit_memory()
    for i in range(first, last):
        pick = random.Random(f"{seed}-{i}").choice
        target = hostile.pick_target(calls, pick)
        chosen = hostile.choose(target, labels, pick)
        what = f"{target.name}({', '.join(f'{k}={v}' for k, v in chosen.items())})"
        print(json.dumps({"start": i, "call": what}), flush=True)
        error = None
        replaced = {k: values[v]() for k, v in chosen.items()}
        if not hostile.patient(target, replaced):
            print(json.dumps({"end": i, "outcome": "skipped"}), flush=True)
            continue
        try:
            hostile.run(target, replaced, evaluate=True)
        except BaseException as caught:
            error = caught
            if alone:
                traceback.print_exc()
        print(json.dumps({"end": i, "outcome": hostile.judge(target, replaced, error)}), flush=True)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except ImportError:
        pass


class Worker:
    """A process that makes calls, and what it says."""

    def __init__(self, backend: str, seed: int, first: int, last: int, folder: str):
        command = [sys.executable, str(HERE), "--worker", backend, str(seed), str(first), str(last)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True, cwd=folder)
        self.lines: queue.Queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def next(self, seconds: float) -> dict | None:
        """What it says next; ``None`` if it died. Raises ``queue.Empty`` if it says nothing for so long."""
        used, begin = self._used(), time.monotonic()
        while True:
            try:
                return self.lines.get(timeout=1)
            except queue.Empty:
                if self._used() - used > seconds or time.monotonic() - begin > WAITING * seconds:
                    raise

    def _used(self) -> float:
        """Seconds that processors have worked for it; those of the clock where the system does not tell."""
        try:
            numbers = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return time.monotonic()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> str:
        """End the process; the last lines that it wrote to standard error."""
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        return self.errors.read()[-1500:]


def fuzz(backend: str, seed: int, calls: int, seconds: float) -> dict:
    """Figures of ``calls`` calls of one seed, or of as many as take ``seconds``."""
    counts: collections.Counter = collections.Counter()
    bad: list[dict] = []
    stop, current, i = time.monotonic() + seconds, None, 0
    folder = tempfile.TemporaryDirectory(prefix="coopnet-fuzz-")
    job = Worker(backend, seed, 0, calls, folder.name)
    wait: float = START
    while i < calls and time.monotonic() < stop:
        try:
            said = job.next(wait)
            failed = "aborts" if said is None else ""
        except queue.Empty:
            said, failed = None, "hangs"
        if failed:
            why = f"exit status {job.process.wait() if failed == 'aborts' else None}"
            text = job.end()
            if current is None:
                raise SystemExit(f"the worker does not start: {text}")
            counts[failed] += 1
            what = {"what": current, "outcome": f"{failed[:-1]}: {why}", "said": text[-300:]}
            bad.append({"seed": seed, "call": i} | what)
            print(f"{i}: {current}: {what['outcome']} {what['said']}", flush=True)
            i, current, wait = i + 1, None, START
            job = Worker(backend, seed, i, calls, folder.name)
        elif said is not None and "start" in said:
            current, wait = said["call"], LIMIT
        elif said is not None:
            outcome = said["outcome"]
            names = {"returned": "returned", "clear": "clear errors", "skipped": "skipped"}
            counts[names.get(outcome, "unclear errors")] += 1
            if outcome.startswith("unclear"):
                bad.append({"seed": seed, "call": said["end"], "what": current, "outcome": outcome})
                print(f"{said['end']}: {current}: {outcome}", flush=True)
            i = said["end"] + 1
    job.end()
    folder.cleanup()
    return {"calls": i - counts["skipped"], **{k: counts[k] for k in KINDS}, "unwanted": bad[:200]}


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        backend, seed, first, last = sys.argv[2:]
        worker(backend, int(seed), int(first), int(last), False)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="llvm")
    parser.add_argument("--calls", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, nargs="+", default=[random.randrange(2**32)])
    parser.add_argument("--only", type=int, help="repeat this call of the first seed, here")
    parser.add_argument("--out", type=Path, help="folder of the result file; none is written with --only")
    args = parser.parse_args()
    if args.only is not None:
        os.chdir(tempfile.mkdtemp(prefix="coopnet-fuzz-"))
        worker(args.backend, args.seed[0], args.only, args.only + 1, True)
        return
    figures: dict = {"seeds": args.seed, **dict.fromkeys(("calls", *KINDS), 0), "unwanted": []}
    for seed in args.seed:
        print("seed", seed, flush=True)
        found = fuzz(args.backend, seed, args.calls, args.seconds)
        print({k: v for k, v in found.items() if k != "unwanted"}, flush=True)
        figures |= {k: figures[k] + v for k, v in found.items()}
    import common

    print("written to", common.write("fuzz", args.backend, figures, args.out or common.RESULTS))


if __name__ == "__main__":
    main()
