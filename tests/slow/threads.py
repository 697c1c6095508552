"""Threads that train at the same time: no error, no hang, and the results of runs after each other to the bit.

    python tests/slow/threads.py --runs 50 --threads 2 4 --steps 100

Every run is a process of its own, whose threads build a field, train it (every second one with a metric), and save it
while others train. ``--users 1`` adds a thread that evaluates another field meanwhile. The exit status is the number of
runs that failed.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import common  # noqa: E402

LIMIT = 300  # seconds for one process: a hang, unless the machine does nothing else


def train(backend: str, i: int, steps: int, directory: str) -> str:
    """A hash of everything that run ``i`` leaves behind."""
    import drjit as dr

    import coopnet as cn

    ns = cn.backend.namespace(backend)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 256 + 64 * i)
        return [x, y], [dr.sin(6 * x) * y, x * y]

    def metric(field):
        return float(field([ns.Float(0.25), ns.Float(0.5)])[0].numpy().sum())

    with cn.training.exclusive():
        net = cn.MLP(out_features=2, width=16, depth=2, dropout=0.1)
        field = cn.NeuralField(cn.Sinusoidal(3, in_features=2), net).build(backend, seed=i)
    path = Path(directory) / f"{i}.safetensors"
    options = {"metric": metric, "metric_every": 7} if i % 2 else {}
    result = cn.fit(
        field, batch, steps, seed=i, lr=1e-2, checkpoint=path, checkpoint_every=0.05, progress=False, **options
    )
    with cn.training.exclusive():
        tensors = cn.io.read(path).tensors
        del field, batch, metric, options
    digest = hashlib.sha256(repr((result.losses, result.metrics, result.recordings)).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()[:16]


def one_process(backend: str, threads: int, users: int, steps: int) -> int:
    import coopnet as cn

    results: dict[bool, dict[int, str]] = {False: {}, True: {}}
    errors: list[BaseException] = []
    done = threading.Event()

    def work(i: int, together: bool) -> None:
        try:
            with tempfile.TemporaryDirectory() as directory:
                results[together][i] = train(backend, i, steps, directory)
        except BaseException as error:
            errors.append(error)

    def use() -> None:
        ns = cn.backend.namespace(backend)
        try:
            while not done.is_set():
                with cn.training.exclusive():
                    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)
                    field([ns.Float(0.1, 0.2)] * 2)[0].numpy()
                    del field
        except BaseException as error:
            errors.append(error)

    for i in range(threads):
        work(i, False)
    others = [threading.Thread(target=use) for _ in range(users)]
    trainers = [threading.Thread(target=work, args=(i, True)) for i in range(threads)]
    for thread in [*others, *trainers]:
        thread.start()
    for thread in trainers:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    for error in errors:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    if backend == "llvm" and results[True] != results[False] and not errors:
        print(f"results differ: {results}", file=sys.stderr)
        return 2
    return 1 if errors else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="llvm")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--users", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder of the result file")
    parser.add_argument("--one", action="store_true", help="one process (what the script starts)")
    options = parser.parse_args()
    if options.one:
        return one_process(options.backend, options.threads[0], options.users, options.steps)
    failed, rows = 0, []
    for threads in options.threads:
        ends: collections.Counter[str] = collections.Counter()
        start = time.monotonic()
        for _ in range(options.runs):
            command = [sys.executable, __file__, "--one", "--backend", options.backend, "--threads", str(threads)]
            command += ["--users", str(options.users), "--steps", str(options.steps)]
            try:
                done = subprocess.run(command, timeout=LIMIT, stderr=subprocess.PIPE, text=True, check=False)
            except subprocess.TimeoutExpired:
                ends["hung"] += 1
                continue
            end = {0: "clean", 1: "raised", 2: "differed"}.get(done.returncode, f"ended with {done.returncode}")
            ends[end] += 1
            if done.returncode:
                print(done.stderr[-400:], file=sys.stderr)
        failed += options.runs - ends["clean"]
        rows.append({"threads": threads, "users": options.users, "steps": options.steps, "ends": dict(ends)})
        print(f"{options.runs} runs of {threads} threads, {options.steps} steps each: {dict(ends)}", end=" ")
        print(f"({time.monotonic() - start:.0f} s)", flush=True)
    print(common.write("threads", options.backend, {"runs": options.runs, "rows": rows}, options.out))
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
