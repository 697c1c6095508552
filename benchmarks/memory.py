"""Dropout over arrays in memory, against copying them, PyTorch and, on CUDA, Triton, in one run on one machine.

The input is ``(64, n)`` or ``(8, n)`` numbers in single or half precision that lie in memory; the output is written to
memory that was not there before. Bandwidth counts the input read and the output written, once each.

Each peer lives in a process of its own, and one works at a time; all of them do one size before any does the next.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common

P = 0.1
ROWS = (64, 8)
LOG2_SIZES = {"llvm": [24, 22, 20], "cuda": [27, 24, 22, 20, 26, 25, 23, 21]}
QUICK = {"llvm": [20], "cuda": [24]}
DTYPES = ("float32", "float16")
#: Turns at each size: the CPU's other users come and go.
TURNS = {"llvm": 3, "cuda": 1}
#: Seconds that the calls of one turn may take, if three calls don't take longer.
TIMING = 0.3


class DrJit:
    """Peers on Dr.Jit: a copy, and coopnet's dropout of tensors and of lists of rows."""

    def __init__(self, name: str, backend: str):
        import drjit as dr

        import coopnet as cn

        cn.backend.require(backend)
        self.name, self.backend, self.dr, self.cn, self.ns = name, backend, dr, cn, cn.backend.namespace(backend)
        if name == "coopnet-fused":  # as inside larger kernels: a random block for every element
            from coopnet.random import draws

            draws.LARGE = 1 << 40

    def prepare(self, rows: int, size: int, dtype: str) -> None:
        dr, ns = self.dr, self.ns
        leaf = ns.Float16 if dtype == "float16" else ns.Float
        count = size if self.name != "coopnet-list" else size // rows
        # rows that differ: of equal expressions Dr.Jit evaluates one
        lane = dr.arange(ns.UInt32, count)
        parts = [leaf(ns.Float((lane + row) % 1024) * 2**-10 + 1) for row in range(size // count)]
        dr.eval(parts)
        dr.sync_thread()
        self.x = parts if self.name == "coopnet-list" else dr.tensor_t(leaf)(parts[0], (rows, size // rows))
        self.size, self.two = size, dr.opaque(leaf, 2)

    def call(self, i: int) -> Any:
        dr, cn = self.dr, self.cn
        if self.name == "copy":
            y = self.x.array * self.two
        else:
            y = cn.dropout(self.x, P, cn.Key(1, step=i))
        dr.eval(y)
        dr.sync_thread()
        return y

    def kept(self, y: Any) -> float:
        parts = y if isinstance(y, list) else [y]
        flat = [v.array if self.dr.is_tensor_v(v) else v for v in parts]
        return sum(int(self.dr.count(v != 0)[0]) for v in flat) / self.size

    def kernel_ms(self, repeat: int) -> float:
        numbers = itertools.count()
        return common.kernel_times(lambda: self.call(next(numbers)), repeat, warmup=0)["kernel_ms"]

    def extra_bytes(self) -> int:
        """What a call takes beside its input."""
        dr = self.dr
        which = dr.JitBackend.CUDA if self.backend == "cuda" else dr.JitBackend.LLVM
        dr.flush_malloc_cache()
        dr.detail.malloc_clear_statistics()
        before = dr.detail.malloc_watermark(which)
        self.call(0)
        return dr.detail.malloc_watermark(which) - before

    def release(self) -> None:
        self.x = None
        self.dr.flush_malloc_cache()


class Torch:
    """Peers on PyTorch's memory: its copy, its dropout, and Triton's."""

    def __init__(self, name: str, backend: str):
        import torch

        torch.set_num_threads(os.cpu_count() or 1)
        self.name, self.torch, self.device = name, torch, "cuda" if backend == "cuda" else "cpu"
        self.launch = triton_dropout() if name.startswith("triton") else None

    def prepare(self, rows: int, size: int, dtype: str) -> None:
        torch = self.torch
        x = (torch.arange(size, device=self.device) % 1024).float() * 2**-10 + 1
        self.x = x.to(getattr(torch, dtype)).reshape(rows, size // rows)
        self.size = size

    def queue(self, i: int) -> Any:
        torch = self.torch
        if self.name == "torch-copy":
            return self.x.clone()
        if self.name == "torch":
            return torch.nn.functional.dropout(self.x, P, training=True)
        y = torch.empty_like(self.x)
        assert self.launch is not None
        self.launch(self.x, y, i, four=self.name == "triton-four-words")
        return y

    def call(self, i: int) -> Any:
        with self.torch.inference_mode():
            y = self.queue(i)
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return y

    def kept(self, y: Any) -> float:
        return float((y != 0).double().mean())

    def kernel_ms(self, repeat: int) -> float | None:
        if self.device != "cuda":
            return None
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.inference_mode():
            begin.record()
            for i in range(repeat):
                self.queue(i)
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) / repeat

    def extra_bytes(self) -> int | None:
        if self.device != "cuda":
            return None
        self.torch.cuda.reset_peak_memory_stats()
        before = self.torch.cuda.memory_allocated()
        self.call(0)
        return self.torch.cuda.max_memory_allocated() - before

    def release(self) -> None:
        self.x = None
        if self.device == "cuda":
            self.torch.cuda.empty_cache()


tl: Any = None  # a name that Triton's compiler looks up in this module


def triton_dropout() -> Callable:
    """Seeded dropout in Triton: one Philox call for every element, or for every four of them."""
    global tl
    import triton
    import triton.language

    tl = triton.language

    @triton.jit
    def one(x, y, size, p, seed, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        value = tl.load(x + place, mask=inside)
        keep = tl.rand(seed, place) >= p
        tl.store(y + place, tl.where(keep, value / (1 - p), 0.0), mask=inside)

    @triton.jit
    def four(x, y, size, p, seed, BLOCK: tl.constexpr):
        lane = tl.arange(0, BLOCK)
        first = tl.program_id(0) * (4 * BLOCK) + lane
        r0, r1, r2, r3 = tl.rand4x(seed, tl.program_id(0) * BLOCK + lane)
        v0 = tl.load(x + first, mask=first < size)
        v1 = tl.load(x + first + BLOCK, mask=first + BLOCK < size)
        v2 = tl.load(x + first + 2 * BLOCK, mask=first + 2 * BLOCK < size)
        v3 = tl.load(x + first + 3 * BLOCK, mask=first + 3 * BLOCK < size)
        tl.store(y + first, tl.where(r0 >= p, v0 / (1 - p), 0.0), mask=first < size)
        tl.store(y + first + BLOCK, tl.where(r1 >= p, v1 / (1 - p), 0.0), mask=first + BLOCK < size)
        tl.store(y + first + 2 * BLOCK, tl.where(r2 >= p, v2 / (1 - p), 0.0), mask=first + 2 * BLOCK < size)
        tl.store(y + first + 3 * BLOCK, tl.where(r3 >= p, v3 / (1 - p), 0.0), mask=first + 3 * BLOCK < size)

    def run(source: Any, target: Any, seed: int, *, four: bool, kernels: tuple = (one, four)) -> None:
        block = 1024
        programs = -(-source.numel() // (4 * block if four else block))
        kernels[four][(programs,)](source, target, source.numel(), P, seed, BLOCK=block)

    return run


CLASSES = {"copy": DrJit, "coopnet": DrJit, "coopnet-list": DrJit, "coopnet-fused": DrJit}
CLASSES |= {"torch-copy": Torch, "torch": Torch, "triton": Torch, "triton-four-words": Torch}
PEERS = {"cuda": list(CLASSES), "llvm": [name for name in CLASSES if not name.startswith("triton")]}


def worker(name: str, backend: str, pipe: Any) -> None:
    """Answer jobs with what was measured, or with the text of an error."""
    peer: Any = None
    while (job := pipe.recv()) is not None:
        try:
            peer = peer or CLASSES[name](name, backend)
            pipe.send(measure_one(peer, job))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])


def measure_one(peer: Any, job: dict) -> dict:
    peer.prepare(job["rows"], 1 << job["log2_size"], job["dtype"])
    try:
        kept = peer.kept(peer.call(0))
        start = time.perf_counter()
        peer.call(1)
        repeat = max(3, min(25, int(TIMING / (time.perf_counter() - start))))
        times = []
        for i in range(repeat):
            start = time.perf_counter()
            peer.call(i)
            times.append(1e3 * (time.perf_counter() - start))
        return {
            "wall_ms": statistics.median(times),
            "best_ms": min(times),
            "kernel_ms": peer.kernel_ms(repeat),
            "kept": kept,
            "extra_bytes": peer.extra_bytes(),
        }
    finally:
        peer.release()


def jobs(args: argparse.Namespace) -> Iterator[dict]:
    for log2_size in args.log2_sizes:
        for rows in ROWS:
            for dtype in DTYPES:
                yield {"log2_size": log2_size, "rows": rows, "dtype": dtype}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    begin = time.monotonic()
    entries: list[dict] = []
    skipped: list[dict] = []
    results = {"settings": settings(args), "entries": entries, "skipped": skipped}
    pipes, processes = {}, []
    try:
        for name in args.peers:
            pipes[name], theirs = context.Pipe()
            processes.append(context.Process(target=worker, args=(name, args.backend, theirs), daemon=True))
            processes[-1].start()
            theirs.close()
        for job in jobs(args):
            found: dict[str, list[dict]] = {}
            for turn in range(TURNS[args.backend]):
                for name in list(pipes):
                    left = args.budget - (time.monotonic() - begin)
                    answer: Any = "the budget was spent"
                    if left > 0:
                        pipes[name].send(job)
                        answer = "no answer"
                        if pipes[name].poll(left + 60):
                            answer = pipes[name].recv()
                    if isinstance(answer, dict):
                        found.setdefault(name, []).append(answer)
                    else:
                        skipped.append({**job, "peer": name, "turn": turn, "why": answer})
                        if answer == "no answer":
                            del pipes[name]
            for name, turns in found.items():
                entries.append({"peer": name, **job, **merge(turns, job)})
                print(summary(entries[-1]), flush=True)
            results["seconds"] = round(time.monotonic() - begin, 1)
            args.path = common.write("memory", args.backend, results, args.out)
    finally:
        for pipe in pipes.values():
            pipe.send(None)
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
    return results


def merge(turns: list[dict], job: dict) -> dict:
    """Medians over the turns, and the bandwidth that follows."""
    result: dict[str, Any] = {**turns[0], "turns_ms": [t["wall_ms"] for t in turns]}
    for name in ("wall_ms", "kernel_ms"):
        values = [t[name] for t in turns if t[name] is not None]
        result[name] = statistics.median(values) if values else None
    result["best_ms"] = min(t["best_ms"] for t in turns)
    moved = 2 * (1 << job["log2_size"]) * (2 if job["dtype"] == "float16" else 4)
    for name in ("wall", "best", "kernel"):
        ms = result[f"{name}_ms"]
        result[f"{name}_gb_per_s"] = moved / ms * 1e-6 if ms else None
    return result


def settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "p": P,
        "bits": 16,
        "copy": "a Dr.Jit kernel that reads the array, doubles it and writes the result",
        "coopnet": "a tensor; coopnet-list: a list of rows; coopnet-fused: a tensor, element by element, as in kernels",
        "wall_ms": "median over the calls of a turn, and of turns; waits for the result; outside dr.freeze",
        "best_ms": "least of all calls: what an idle machine would take",
        "kernel_ms": "Dr.Jit's kernel history; CUDA events around queued calls for PyTorch and Triton on CUDA",
        "gb_per_s": "input read and output written, once each, over the time",
        "extra_bytes": "peak of Dr.Jit's or PyTorch's allocator beside the input; null for PyTorch on the CPU",
        "budget_s": args.budget,
        "load_before": os.getloadavg()[0],
    }


def summary(entry: dict) -> str:
    which = "kernel" if entry["kernel_ms"] is not None else "best"
    times = f"{entry['wall_ms']:8.3f} ms, best {entry['best_ms']:8.3f}"
    rate = f"{which} {entry[which + '_gb_per_s']:7.1f} GB/s"
    where = f"2^{entry['log2_size']} {entry['rows']:>2} rows {entry['dtype']} {entry['peer']:18}"
    return f"{where} {times}, {rate}, kept {entry['kept']:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    parser.add_argument(
        "--log2-sizes", type=lambda text: [int(v) for v in text.split(",")], help="elements, such as 24,20"
    )
    parser.add_argument("--peers", help=f"of {', '.join(PEERS['cuda'])}, separated by commas")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no more is measured")
    parser.add_argument("--quick", action="store_true", help="one size")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder of the result file")
    args = parser.parse_args()
    from coopnet.backend import require

    args.backend = require(args.backend)
    args.log2_sizes = args.log2_sizes or (QUICK if args.quick else LOG2_SIZES)[args.backend]
    args.peers = common.chosen_peers(parser, args, PEERS, CLASSES)
    args.path = None
    measure(args)
    print("written to", args.path)


if __name__ == "__main__":
    main()
