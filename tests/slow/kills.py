"""Kills ``fit`` a few hundred times and resumes it: does every run end as one that nothing happened to?

    python tests/slow/kills.py --kills 100 --interrupts 100

A worker trains with ``resume=True`` and a checkpoint after every step; this process sends it signals at random times
(seeded), starts the next one, and compares the finished checkpoint with that of a run left alone: all tensors (weights,
optimizer, average, best, losses, counters) and the metadata, to the bit. Four fields take turns:

* half precision with a hash grid, whose gradients overflow at times, so that the loss scaler skips steps;
* single precision with a hash grid, Adam with gathered gradients and lookahead;
* half precision without a grid, and single precision without one, with SGD.

All have dropout, a cosine schedule, an average of the weights, and a metric with patience. Signals arrive:

* kills (SIGKILL), interrupts (SIGINT) and terminations (SIGTERM) any time, one in five while Python still imports;
* kills in the middle of writing: half a checkpoint is on the disk, or a whole one that is not in its place yet.

Then the disk fills up (a small tmpfs, if this process may mount one): the worker must end with an error and leave the
last checkpoint, from which it goes on once there is room.

Not part of the test suite, since it takes a quarter of an hour; writes ``benchmarks/results/kills-*.json``.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

NAME = "run.safetensors"
STEPS = 120
LIMIT = 120  #: seconds after which a process that should have ended counts as hung
FIELDS = ("half grid", "single grid", "half", "single")


# ---- the process that is killed -----------------------------------------


def work(name: str, folder: Path, backend: str, writes: bool, alone: bool) -> int:
    """Train the field called ``name`` to its end; say every step, and with ``writes`` when a file is half written."""
    import drjit as dr
    import numpy as np

    import coopnet as cn

    signal.signal(signal.SIGINT, signal.default_int_handler)  # also of a campaign in the background, which ignores it
    if writes:
        _slow_writes()
    backend = cn.backend.require(backend)
    ns = cn.backend.namespace(backend)
    half, grid = name.startswith("half"), name.endswith("grid")
    if backend == "cuda" and not half:
        raise SystemExit("CUDA multiplies half precision only")
    encoding = cn.HashGrid(2, n_levels=3, base_resolution=4, hashmap_size=256) if grid else cn.Triangular(3)
    network = cn.MLP(out_features=2, width=16, depth=2, dropout=0.1)
    field = cn.NeuralField(encoding, network, in_features=2).build(backend, "half" if half else "single", seed=1)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 512)
        scale = dr.select(key.step % 16 == 5, ns.Float(1e6), 1) if half else 1
        return [x, y], [dr.sin(6 * x) * y * scale, x * y]

    points = [ns.Float(v) for v in np.random.default_rng(0).random((2, 200)).astype(np.float32)]

    def metric(field):
        y = field(points)
        return -float(np.mean((y[0] - dr.sin(6 * points[0]) * points[1]).numpy().astype(np.float64) ** 2))

    schedule = cn.training.cosine(1e-2, STEPS, warmup=10)

    def rate(step):
        print(f"step {step}", flush=True)
        return schedule(step)

    optimizers = {
        "half grid": None,
        "single grid": cn.training.Adam(1e-3, accumulate=2, lookahead=3),
        "half": cn.training.Adam(1e-3, l2_reg=1e-6),
        "single": cn.training.SGD(1e-1, momentum=0.9),
    }
    result = cn.fit(
        field, batch, STEPS, lr=rate, optimizer=optimizers[name], seed=3, clip_norm=1.0,
        ema=cn.training.EMA(field, 0.95), metric=metric, metric_every=7, patience=1000, checkpoint=folder / NAME,
        checkpoint_every=1e9 if alone else 0, resume=not alone, progress=False,
    )  # fmt: skip
    print(f"stopped {result.stopped}", flush=True)
    return 0 if result.stopped == "steps" else 3


def _slow_writes() -> None:
    """Let half a file lie on the disk for a while, then all of it."""
    from coopnet.io import checkpoint, files

    def slow(path: Any, write: Callable) -> None:
        def half_first(temporary: Path) -> None:
            write(temporary)
            whole = temporary.read_bytes()
            os.truncate(temporary, len(whole) // 2)
            print("half", flush=True)
            time.sleep(0.01)
            temporary.write_bytes(whole)
            print("whole", flush=True)
            time.sleep(0.01)

        files.atomic_write(path, half_first)

    checkpoint.atomic_write = slow


# ---- the process that kills ---------------------------------------------


class Worker:
    """A running worker; its output comes line by line."""

    def __init__(self, name: str, folder: Path, backend: str, *options: str):
        command = [sys.executable, "-u", __file__, "--work", name, "--folder", str(folder), "--backend", backend]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.steps = 0

    def until(self, word: str) -> bool:
        """Read lines to one that begins with ``word``; false at the end of the output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.steps += line.startswith("step ")
            if line.startswith(word):
                return True
        return False

    def end(self) -> tuple[int, str]:
        """Exit status and what was said on standard error; kills a process that hangs."""
        try:
            out, errors = self.process.communicate(timeout=LIMIT)
            self.steps += out.count("step ")
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return 999, "hung"
        return self.process.returncode, errors


def content(path: Path) -> tuple[dict, dict]:
    """Tensors and metadata of a checkpoint, but for its wall time."""
    import coopnet as cn

    found = cn.io.read(path)
    state = json.loads(found.metadata["training"])
    state["progress"].pop("seconds")
    tensors = {name: (str(v.dtype), v.shape, v.tobytes()) for name, v in found.tensors.items()}
    return tensors, {"architecture": found.architecture, "training": state}


def litter(folder: Path) -> list[str]:
    return sorted(set(os.listdir(folder)) - {NAME})


class Campaign:
    """Runs that are hit again and again until all hits are used up, and the tally."""

    def __init__(self, seed: int, backend: str, fields: tuple[str, ...], root: Path):
        self.rng, self.backend, self.fields, self.root = random.Random(seed), backend, fields, root
        self.references = {}
        for name in fields:
            folder = root / f"reference {name}"
            folder.mkdir()
            worker = Worker(name, folder, backend, "--alone")
            status, errors = worker.end()
            if status:
                raise SystemExit(f"{name}: the run that nothing happens to failed with {status}: {errors[-2000:]}")
            self.references[name] = content(folder / NAME)
        self.tally: dict[str, collections.Counter] = {}

    def run(self, kind: str, number: int, number_of: int) -> None:
        """Hit runs ``number_of`` times with ``kind`` and finish each of them."""
        tally = self.tally.setdefault(kind, collections.Counter())
        hits = 0
        while hits < number_of:
            name = self.fields[number % len(self.fields)]
            folder = Path(tempfile.mkdtemp(dir=self.root))
            number += 1
            done = False
            while not done:
                wanted = hits < number_of
                done, hit = self.life(kind if wanted else None, name, folder, tally)
                hits += hit
                if hit and hits % 10 == 0:
                    print(f"{kind}: {hits} of {number_of}; {dict(tally)}", flush=True)
            tally["runs"] += 1
            equal = content(folder / NAME) == self.references[name]
            tally["equal ends" if equal else "DIFFERENT ENDS"] += 1
            if litter(folder):
                tally["LITTER AT THE END"] += len(litter(folder))

    def life(self, kind: str | None, name: str, folder: Path, tally: collections.Counter) -> tuple[bool, bool]:
        """One process; says whether it came to the end of the run, and whether it was hit."""
        worker = Worker(name, folder, self.backend, *(["--slow-writes"] if kind == "kill while writing" else []))
        if kind is not None:
            self.wait(kind, worker)
            if worker.process.poll() is None:
                number = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}.get(kind, signal.SIGKILL)
                worker.process.send_signal(number)
        status, errors = worker.end()
        if status == 0:
            tally["finished before the hit"] += kind is not None
            return True, False
        if kind is None:
            raise SystemExit(f"{name}: a run that was let alone failed with {status}: {errors[-2000:]}")
        tally["hits"] += 1
        said = errors.strip().splitlines()[-1].split(":")[0] if errors.strip() and status == 1 else ""
        tally[f"exit status {status}" + (f", {said}" if said else "")] += 1
        tally["steps made"] += worker.steps
        tally["processes that made a step"] += worker.steps > 0
        if status == 999:
            tally["HUNG"] += 1
        left = litter(folder)
        tally["temporary files left by a process"] += len(left)
        tally["most temporary files at once"] = max(tally["most temporary files at once"], len(left))
        if kind == "interrupt" and left:
            tally["LITTER OF AN INTERRUPT"] += len(left)
        if (folder / NAME).exists():
            try:
                content(folder / NAME)
            except Exception as error:
                print(f"damaged: {error}", flush=True)
                tally["DAMAGED CHECKPOINTS"] += 1
        return False, True

    def wait(self, kind: str, worker: Worker) -> None:
        """Until it is time for a hit."""
        if kind == "kill while writing":
            for _ in range(self.rng.randrange(1, 8)):
                worker.until("half")
            if self.rng.random() < 0.5:
                worker.until("whole")
            time.sleep(self.rng.uniform(0, 0.012))
        elif self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0, 0.8))
        else:
            worker.until("step")
            time.sleep(self.rng.uniform(0, 0.4))

    def full_disk(self) -> None:
        """Fill a small file system with a checkpoint that is written twice over."""
        tally = self.tally.setdefault("full disk", collections.Counter())
        for name in self.fields:
            folder = Path(tempfile.mkdtemp(dir=self.root))
            size = (self.root / f"reference {name}" / NAME).stat().st_size
            pages = -(-size // 4096) * 4096
            if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages + 8192}", "tmpfs", folder]).returncode:
                tally["not mounted"] += 1
                continue
            try:
                status, errors = Worker(name, folder, self.backend).end()
                tally["errors that name the file"] += status == 1 and NAME in errors.splitlines()[-1]
                tally["DAMAGED CHECKPOINTS"] += not (folder / NAME).exists() or not content(folder / NAME)
                tally["LITTER"] += len(litter(folder))
                subprocess.run(["mount", "-o", f"remount,size={8 * pages}", folder], check=True)
                status, errors = Worker(name, folder, self.backend).end()
                equal = status == 0 and content(folder / NAME) == self.references[name]
                tally["equal ends" if equal else "DIFFERENT ENDS"] += 1
            finally:
                subprocess.run(["umount", folder], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--interrupts", type=int, default=100)
    parser.add_argument("--terminations", type=int, default=20)
    parser.add_argument("--writes", type=int, default=60, help="kills while a checkpoint is written")
    parser.add_argument("--fields", nargs="+", default=None, choices=FIELDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the result file")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--slow-writes", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args.work, args.folder, args.backend, args.slow_writes, args.alone)

    import common

    from coopnet.backend import require

    backend = require(args.backend)
    fields = tuple(args.fields or (FIELDS if backend == "llvm" else ("half grid", "half")))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coopnet-kills-") as folder:
        campaign = Campaign(args.seed, backend, fields, Path(folder))
        for i, (kind, number) in enumerate(
            {"kill": args.kills, "kill while writing": args.writes, "interrupt": args.interrupts,
             "terminate": args.terminations}.items()
        ):  # fmt: skip
            campaign.run(kind, i, number)
        campaign.full_disk()
    results = {
        "seed": args.seed, "fields": fields, "steps of a run": STEPS, "seconds": round(time.monotonic() - start),
        "tally": {kind: {k: v for k, v in tally.items() if v} for kind, tally in campaign.tally.items()},
    }  # fmt: skip
    print(json.dumps(results, indent=1))
    print(common.write("kills", backend, results, args.out))
    return int(any(key.isupper() for tally in results["tally"].values() for key in tally))


if __name__ == "__main__":
    sys.exit(main())
