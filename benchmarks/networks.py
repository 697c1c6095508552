"""Inference and training of one network by coopnet and by its peers, in one run on one machine.

The network is 16 -> w -> w -> w -> 3 with ReLU and no biases, single precision on LLVM and half precision on CUDA, the
same weights and inputs for everybody. Training is forward, L2 loss against fixed targets and weight gradients, no
optimizer. The loss is scaled and formed in single precision (:data:`LOSS_SCALE`), and the targets lie below every
output, so that all of its derivatives have one sign: the worst case for a gradient that is summed in half precision.

Each peer lives in a process of its own, where the thread pools of others cannot disturb it, and one works at a time;
all of them do one configuration before any does the next. They start with empty kernel caches.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import json
import os
import select
import site
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np

N_IN, N_OUT, DEPTH = 16, 3, 3
#: Half-precision gradients of a mean over a million samples would underflow; every peer scales its loss by this.
LOSS_SCALE = 1024.0
DROPOUT = 0.1
PEERS = {"llvm": ["coopnet", "drjit-coop", "drjit-tensor", "torch"]}
PEERS["cuda"] = [*PEERS["llvm"], "torch-compile"]
#: The first batch is the headline: whatever the budget, it is measured at all widths.
BATCHES = {"llvm": [17, 12, 14, 16, 18, 20], "cuda": [20, 16, 22, 18, 14, 12]}
QUICK = {"llvm": [14, 12], "cuda": [20, 14]}
#: Seconds that the calls of one timing take, if five calls don't take longer: the CPU needs some to settle.
TIMING = {"llvm": 0.4, "cuda": 0.1}
#: Calls that take longer than this many seconds are timed once in each turn, after a warm-up.
SLOW = 0.3
#: Times that the peers take turns at the headline; elsewhere once. The CPU's other users come and go.
ROUNDS = {"llvm": 3, "cuda": 1}
#: A configuration that would take a peer longer than this many seconds is skipped.
LIMIT = 40.0
PREFIX = "RESULT "
MODES = ("infer", "train")


# ---- What all peers compute --------------------------------------------------------------------------------


def matrices(width: int, half: bool) -> list[np.ndarray]:
    """He-initialized weights, already rounded to the precision that they are used in."""
    rng = np.random.default_rng(width)
    sizes = [N_IN] + [width] * DEPTH + [N_OUT]
    result = [rng.standard_normal((o, i)) * np.sqrt(2 / i) for i, o in itertools.pairwise(sizes)]
    return [w.astype(np.float16 if half else np.float32) for w in result]


def rows(index: Any) -> tuple[list, list]:
    """Words of inputs and targets of the samples ``index`` (Dr.Jit or NumPy), to be divided by 2^32."""
    import coopnet as cn

    zero = index & 0
    words = [w for b in range(5) for w in cn.philox4x32((zero + b, index, zero, zero), (7, 0))]
    return words[:N_IN], words[N_IN : N_IN + N_OUT]


@functools.lru_cache(maxsize=16)
def host_data(start: int, stop: int, half: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs ``(16, n)`` in [0, 1) and targets ``(3, n)`` in [-12, -11) of a range of samples."""
    dtype = np.float16 if half else np.float32
    x, t = rows(np.arange(start, stop, dtype=np.uint32))
    unit = [np.stack([(w >> 8).astype(np.float32) * np.float32(2**-24) for w in part]) for part in (x, t)]
    return unit[0].astype(dtype), (unit[1] - 12).astype(dtype)


# ---- Peers -------------------------------------------------------------------------------------------------


class Peer:
    """One way to compute the network. ``steps`` yields ``(frozen, call)``; ``call(i)`` waits for its result."""

    def __init__(self, backend: str):
        self.backend, self.half = backend, backend == "cuda"

    def prepare(self, width: int, batch: int) -> None:
        raise NotImplementedError

    def steps(self, mode: str, dropout: float) -> Iterator[tuple[bool | None, Callable[[int], Any]]]:
        raise NotImplementedError

    def gradients(self, result: Any) -> list[np.ndarray]:
        raise NotImplementedError

    def kernel_ms(self, call: Callable[[int], Any], repeat: int) -> float | None:
        return None

    def peak_bytes(self, call: Callable[[int], Any]) -> int | None:
        return None

    def release(self) -> None:
        """Give memory back before the next configuration."""


class DrJitPeer(Peer):
    def __init__(self, backend: str):
        super().__init__(backend)
        import drjit as dr

        from coopnet.backend import namespace, require

        require(backend)
        self.dr, self.ns = dr, namespace(backend)
        self.leaf = self.ns.Float16 if self.half else self.ns.Float
        self.tensor = self.ns.TensorXf16 if self.half else self.ns.TensorXf

    def prepare(self, width: int, batch: int) -> None:
        dr, ns = self.dr, self.ns
        x, t = rows(dr.arange(ns.UInt32, batch))
        self.x = [self.leaf(ns.Float(w >> 8) * 2**-24) for w in x]
        self.t = [self.leaf(ns.Float(w >> 8) * 2**-24 - 12) for w in t]
        self.w = [self.tensor(m) for m in matrices(width, self.half)]
        self.batch = batch
        self.factor = dr.opaque(ns.Float, LOSS_SCALE / (N_OUT * batch))
        dr.eval(self.x, self.t, self.w)
        dr.sync_thread()

    def loss(self, y: list, t: list, factor: Any) -> Any:
        """Summands of the loss; ``dr.backward`` sums."""
        single = self.ns.Float
        return sum((self.dr.square(single(a) - single(b)) for a, b in zip(y, t, strict=True)), single(0)) * factor

    def wait(self, result: Any) -> Any:
        self.dr.eval(result)
        self.dr.sync_thread()
        return result

    def kernel_ms(self, call: Callable[[int], Any], repeat: int) -> float:
        numbers = itertools.count()
        # as many calls before: a changed flag makes Dr.Jit record frozen functions anew
        return common.kernel_times(lambda: call(next(numbers)), repeat, warmup=repeat)["kernel_ms"]

    def peak_bytes(self, call: Callable[[int], Any]) -> int:
        dr = self.dr
        backend = dr.backend_v(self.leaf)
        gc.collect()
        dr.flush_malloc_cache()  # blocks that are cached for reuse count, too
        dr.detail.malloc_clear_statistics()
        call(1)
        return dr.detail.malloc_watermark(backend)

    def release(self) -> None:
        self.x = self.t = self.w = None
        self.dr.flush_malloc_cache()


class Coopnet(DrJitPeer):
    def network(self, dropout: float) -> tuple[Any, str]:
        """The packed network and the name of its parameters."""
        import coopnet as cn

        net = cn.MLP(N_IN, N_OUT, width=self.w[1].shape[0], depth=DEPTH, dropout=dropout)
        field = cn.NeuralField(None, net, output="float16" if self.half else "float32")
        field = field.allocate(self.tensor, "half" if self.half else "single")
        self.linear = [layer for layer in field.network.layers if isinstance(layer, cn.Linear)]
        for layer, w in zip(self.linear, self.w, strict=True):
            layer.weights = self.tensor(w)
        field.pack()
        self.linear = [layer for layer in field.network.layers if isinstance(layer, cn.Linear)]
        return field, "network.weights"

    def evaluate(self, net: Any, x: list, key: Any) -> list:
        return list(net(x, key))

    def steps(self, mode: str, dropout: float) -> Iterator[tuple[bool | None, Callable[[int], Any]]]:
        import coopnet as cn

        dr = self.dr
        net, name = self.network(dropout)
        buffer = dr.copy(net[name])  # what is assigned to net[name] is written into the array that it has

        def infer(net: Any, x: list, step: Any) -> list:
            return self.evaluate(net, x, None if step is None else cn.Key(1, step=step))

        def train(net: Any, w: Any, x: list, t: list, factor: Any, step: Any) -> Any:
            net[name] = w
            dr.enable_grad(net[name])
            dr.backward(self.loss(infer(net, x, step), t, factor))
            gradient = dr.grad(net[name])
            dr.disable_grad(net[name])
            return gradient

        def call(function: Callable, i: int) -> Any:
            step = dr.opaque(self.ns.UInt32, i) if dropout else None
            if mode == "infer":
                return self.wait(function(net, self.x, step))
            return self.wait(function(net, buffer, self.x, self.t, self.factor, step))

        function = infer if mode == "infer" else train
        for frozen in (True, False):
            chosen = dr.freeze(function) if frozen else function
            yield frozen, lambda i, f=chosen: call(f, i)

    def gradients(self, result: Any) -> list[np.ndarray]:
        import drjit.nn as drnn

        views = [layer.weights for layer in self.linear]
        views[0].buffer[:] = result  # all views see it
        return [self.tensor(drnn.unpack(view)).numpy().astype(np.float64) for view in views]


class DrJitCoop(Coopnet):
    def network(self, dropout: float) -> tuple[Any, str]:
        import drjit.nn as drnn

        net = drjit_network(self.w[1].shape[0]).alloc(self.tensor, N_IN)
        for layer, w in zip(net.layers[::2], self.w, strict=True):
            layer.weights = self.tensor(w)
        net = drnn.pack(net, layout="training")
        self.linear = net.layers[::2]
        return net, "weights"

    def evaluate(self, net: Any, x: list, key: Any) -> list:
        import drjit.nn as drnn

        return list(net(drnn.CoopVec(x)))


class DrJitTensor(DrJitPeer):
    def prepare(self, width: int, batch: int) -> None:
        super().prepare(width, batch)
        self.x = self.stack(self.x)
        self.t = self.stack(self.t)

    def stack(self, parts: list) -> Any:
        dr = self.dr
        result = self.tensor(dr.concat(parts), (len(parts), self.batch))
        dr.eval(result)
        return result

    def steps(self, mode: str, dropout: float) -> Iterator[tuple[bool | None, Callable[[int], Any]]]:
        dr = self.dr
        net = drjit_network(self.w[1].shape[0]).alloc(self.tensor, N_IN)
        linear = net.layers[::2]

        def infer(net: Any, w: list, x: Any) -> Any:
            for layer, m in zip(net.layers[::2], w, strict=True):
                layer.weights = m
            return net(x)

        def train(net: Any, w: list, x: Any, t: Any, factor: Any) -> list:
            w = [self.tensor(dr.detach(m)) for m in w]
            dr.enable_grad(w)
            difference = self.ns.Float(infer(net, w, x).array) - self.ns.Float(t.array)
            dr.backward(dr.square(difference) * factor)
            return [dr.grad(m) for m in w]

        def call(function: Callable, i: int) -> Any:
            extra = () if mode == "infer" else (self.t, self.factor)
            return self.wait(function(net, self.w, self.x, *extra))

        function = infer if mode == "infer" else train
        for frozen in (True, False):
            chosen = dr.freeze(function) if frozen else function
            yield frozen, lambda i, f=chosen: call(f, i)
            for layer, w in zip(linear, self.w, strict=True):
                layer.weights = w

    def gradients(self, result: Any) -> list[np.ndarray]:
        return [g.numpy().astype(np.float64) for g in result]


def drjit_network(width: int) -> Any:
    import drjit.nn as drnn

    sizes = [N_IN] + [width] * DEPTH + [N_OUT]
    layers: list[Any] = []
    for i, o in itertools.pairwise(sizes):
        layers += [drnn.Linear(i, o, bias=False), drnn.ReLU()]
    return drnn.Sequential(*layers[:-1])


class Torch(Peer):
    compiled = False

    def __init__(self, backend: str):
        super().__init__(backend)
        import torch

        self.torch, self.device = torch, "cuda" if backend == "cuda" else "cpu"
        torch.set_num_threads(os.cpu_count() or 1)
        if self.compiled:
            import torch._dynamo

            torch._dynamo.config.recompile_limit = 1000

    def prepare(self, width: int, batch: int) -> None:
        torch = self.torch
        x, t = host_data(0, batch, self.half)
        self.x = torch.tensor(np.ascontiguousarray(x.T)).to(self.device)
        self.t = torch.tensor(np.ascontiguousarray(t.T)).to(self.device)
        self.w = [torch.tensor(m).to(self.device) for m in matrices(width, self.half)]
        self.batch = batch

    def steps(self, mode: str, dropout: float) -> Iterator[tuple[bool | None, Callable[[int], Any]]]:
        torch = self.torch
        functional = torch.nn.functional
        factor = LOSS_SCALE / (N_OUT * self.batch)
        weights = [w.detach().clone().requires_grad_(mode == "train") for w in self.w]

        def infer(x: Any, *w: Any) -> Any:
            for m in w[:-1]:
                x = functional.dropout(functional.relu(functional.linear(x, m)), dropout, training=dropout > 0)
            return functional.linear(x, w[-1])

        def loss(x: Any, t: Any, *w: Any) -> Any:
            return torch.sum((infer(x, *w).float() - t.float()) ** 2) * factor

        function = infer if mode == "infer" else loss
        if self.compiled:
            function = torch.compile(function, dynamic=False)

        def call(i: int) -> Any:
            if mode == "infer":
                with torch.inference_mode():
                    result = function(self.x, *weights)
            else:
                result = torch.autograd.grad(function(self.x, self.t, *weights), weights)
            if self.device == "cuda":
                torch.cuda.synchronize()
            return result

        self.queue = lambda: self._queue(function, mode, weights)
        yield None, call

    def _queue(self, function: Callable, mode: str, weights: list) -> None:
        if mode == "infer":
            with self.torch.inference_mode():
                function(self.x, *weights)
        else:
            self.torch.autograd.grad(function(self.x, self.t, *weights), weights)

    def kernel_ms(self, call: Callable[[int], Any], repeat: int) -> float | None:
        """Time between events around ten calls that are not waited for."""
        if self.device != "cuda":
            return None
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            self.queue()
        begin.record()
        for _ in range(10):
            self.queue()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 10

    def peak_bytes(self, call: Callable[[int], Any]) -> int | None:
        if self.device != "cuda":
            return None
        self.torch.cuda.reset_peak_memory_stats()
        call(1)
        return self.torch.cuda.max_memory_allocated()

    def gradients(self, result: Any) -> list[np.ndarray]:
        return [g.detach().cpu().numpy().astype(np.float64) for g in result]

    def release(self) -> None:
        self.x = self.t = None
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
        if self.compiled:
            self.torch._dynamo.reset()


class TorchCompile(Torch):
    compiled = True


CLASSES = {
    "coopnet": Coopnet,
    "drjit-coop": DrJitCoop,
    "drjit-tensor": DrJitTensor,
    "torch": Torch,
    "torch-compile": TorchCompile,
}


# ---- A peer's process --------------------------------------------------------------------------------------


def worker(name: str, backend: str, target: str | None) -> None:
    """Answer jobs, one JSON line each, until standard input ends."""
    if target:
        from coopnet.jit.native.core import set_llvm_target

        set_llvm_target(target, common.TARGETS[target][0])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    serve = expected_gradients if name == "reference" else Runner(name, backend)
    for line in sys.stdin:
        try:
            answer = {"ok": serve(**json.loads(line))}
        except Exception as error:  # reported, and the next job is tried
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(PREFIX + json.dumps(answer) + "\n")
        answers.flush()


class Runner:
    """Measures one peer."""

    def __init__(self, name: str, backend: str):
        self.name, self.backend, self.peer = name, backend, CLASSES[name](backend)

    def __call__(
        self, width: int, log2_batch: int, repeat: int, modes: list, expected: dict[str, str], until: float, again: bool
    ) -> list[dict]:
        peer, out = self.peer, []
        peer.prepare(width, 1 << log2_batch)
        for mode, dropout in modes:
            for frozen, call in peer.steps(mode, dropout):
                if time.time() > until:
                    break
                entry = {"peer": self.name, "frozen": frozen, "mode": mode, "dropout": dropout}
                entry |= {"width": width, "log2_batch": log2_batch}
                path = expected.get(str(dropout)) if mode == "train" else None
                out.append(entry | self.measure(call, repeat, path, again))
        peer.release()
        return out

    def measure(self, call: Callable[[int], Any], repeat: int, expected: str | None, again: bool) -> dict[str, Any]:
        start = time.perf_counter()
        result = call(0)
        row: dict[str, Any] = {"first_call_s": time.perf_counter() - start}
        row["peak_bytes"] = None if again else self.peer.peak_bytes(call)
        for i in (1, 2):  # in the first calls, memory is allocated
            call(i)
        start = time.perf_counter()
        call(3)
        once = time.perf_counter() - start
        if once > SLOW:
            row |= {"wall_ms": 1e3 * once, "calls": 1}
        else:
            repeat = max(5, min(repeat, int(TIMING[self.backend] / once)))
            step = iter(range(4, 1 << 20))
            wall = common.median_seconds(lambda: call(next(step)), repeat, 2 + repeat // 4)
            row |= {"wall_ms": 1e3 * wall, "calls": repeat}
        row["kernel_ms"] = None if again else self.peer.kernel_ms(call, 1 if once > SLOW else 3)
        # call(0) drew the masks of step 0, those of the reference
        row["gradient_error"] = gradient_error(self.peer.gradients(result), expected) if expected else None
        return row


def gradient_error(gradients: list[np.ndarray], path: str) -> float:
    """Largest relative error of a layer, in the Frobenius norm."""
    with np.load(path) as expected:
        pairs = [(g, expected[f"arr_{i}"]) for i, g in enumerate(gradients)]
    return max(float(np.linalg.norm(g - e) / np.linalg.norm(e)) for g, e in pairs)


def expected_gradients(width: int, log2_batch: int, half: bool, dropout: float, path: str) -> str:
    """Gradients in double precision in chunks, by PyTorch where it has a GPU, and without one by NumPy."""
    from coopnet import reference

    torch = gpu_torch() if half and not dropout else None
    weights = [w.astype(np.float64) for w in matrices(width, half)]
    batch = 1 << log2_batch
    total = [np.zeros(w.shape) for w in weights]
    chunk = 1 << (18 if torch else 14)
    for start in range(0, batch, chunk):
        stop = min(batch, start + chunk)
        x, t = (v.astype(np.float64) for v in host_data(start, stop, half))
        if torch:
            ws = [torch.tensor(w, device="cuda", requires_grad=True) for w in weights]
            h = torch.tensor(x, device="cuda")
            for w in ws[:-1]:
                h = torch.relu(w @ h)
            y = ws[-1] @ h
            target = torch.tensor(t, device="cuda")
            one_sign = bool((y > target).all())
            loss = torch.sum((y - target) ** 2) * (LOSS_SCALE / (N_OUT * batch))
            part = [g.cpu().numpy() for g in torch.autograd.grad(loss, ws)]
        else:
            mask = None
            if dropout:
                mask = reference.MLPDropout(dropout, seed=1, step=0, index=np.arange(start, stop))
            y = reference.mlp(weights, x, "relu", dropout=mask, dtype=np.float16 if half else np.float32)
            one_sign = bool((y > t).all())
            dy = 2 * (y - t) * (LOSS_SCALE / (N_OUT * batch))
            dtype = np.float16 if half else np.float32
            part = reference.mlp_vjp(weights, x, dy, "relu", dropout=mask, dtype=dtype)[2]
        if not one_sign:
            raise ValueError(f"the derivatives of the loss at width {width} do not have one sign")
        for a, b in zip(total, part, strict=True):
            a += b
    with open(path, "wb") as file:
        np.savez(file, *total)
    time.sleep(0.2)  # until the threads of NumPy's BLAS have stopped waiting for more
    return path


def gpu_torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


# ---- The conductor -----------------------------------------------------------------------------------------


class Process:
    """A worker, started when it is first asked and again after it died."""

    def __init__(self, name: str, backend: str, scratch: Path, target: str | None):
        self.name, self.backend, self.scratch, self.target, self.process = name, backend, scratch, target, None

    def start(self) -> None:
        home = self.scratch / self.name
        home.mkdir(exist_ok=True)
        root = str(Path(__file__).resolve().parent.parent)
        folders = {"HOME": "", "OPTIX_CACHE_PATH": "optix", "CUDA_CACHE_PATH": "cuda"}
        folders |= {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        environment = os.environ | {
            **{k: str(home / v) for k, v in folders.items()},
            **(common.TARGETS[self.target][1] if self.target else {}),
            "PYTHONUSERBASE": site.getuserbase(),
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        command = [sys.executable, __file__, "--worker", self.name, "--backend", self.backend]
        command += ["--target", self.target] if self.target else []
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, timeout: float, **job: Any) -> dict:
        """The worker's answer, ``{"ok": ...}`` or ``{"error": ...}``."""
        if self.process is None:
            self.start()
        assert self.process and self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.lost("could not be started")
        end = time.monotonic() + timeout
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return self.lost(f"took more than {timeout:.0f} s")
            line = self.process.stdout.readline()
            if not line:
                return self.lost("died")
            if line.startswith(PREFIX):
                return json.loads(line[len(PREFIX) :])

    def lost(self, why: str) -> dict:
        self.stop()
        return {"error": f"the process {why}"}

    def stop(self, patience: float = 0.0) -> None:
        """End the process: by the end of its input if it listens, and otherwise the hard way."""
        if self.process is None:
            return
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process = None


def estimate(spent: dict, width: int, log2_batch: int) -> float:
    """Seconds that a configuration may take, from the same width at the nearest smaller batch measured."""
    known = [(b, s) for (w, b), s in spent.items() if w == width and b < log2_batch]
    if not known:
        return 0.0
    b, s = max(known)
    return s * 2 ** (log2_batch - b)


def configurations(widths: list[int], batches: list[int], backend: str, all_of_them: bool) -> list[tuple[int, int]]:
    """``(width, log2_batch)`` in the order of measurement; width 128 compiles long on CUDA: only the headline there."""
    pairs = [(w, b) for b in batches for w in widths]
    if backend == "cuda" and not all_of_them:
        pairs = [(w, b) for w, b in pairs if w < 128 or b == batches[0]]
    return pairs


def measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    half = args.backend == "cuda"
    begin = time.monotonic()
    workers = {name: Process(name, args.backend, scratch, args.target) for name in [*args.peers, "reference"]}
    entries: list[dict] = []
    skipped: list[dict] = []
    spent: dict[str, dict] = {name: {} for name in args.peers}
    results = {"settings": settings(args), "entries": entries, "skipped": skipped}
    try:
        for width, log2_batch in configurations(args.widths, args.log2_batches, args.backend, args.all):
            where = {"width": width, "log2_batch": log2_batch}
            expected: dict[str, str] = {}
            for p in (0.0, DROPOUT):
                # NumPy does those with dropout, which takes long
                if time.monotonic() - begin > args.budget or log2_batch > (14 if p else 22 if half else 18):
                    continue
                path = str(scratch / f"{width}-{log2_batch}-{p}.npz")
                answer = workers["reference"].ask(120, **where, half=half, dropout=p, path=path)
                if "ok" in answer:
                    expected[str(p)] = path
                else:
                    skipped.append({**where, "peer": "reference", "why": answer["error"]})
            rounds = ROUNDS[args.backend] if log2_batch == args.log2_batches[0] else 1
            found: dict[tuple, list[dict]] = {}
            for turn, name in itertools.product(range(rounds), args.peers):
                left = args.budget - (time.monotonic() - begin)
                # on CUDA it is compilation that takes
                guess = 0.0 if half or turn else estimate(spent[name], width, log2_batch)
                why = None
                if left <= 0 or guess > left:
                    why = "the budget was spent"
                elif turn and spent[name].get((width, log2_batch), LIMIT) > LIMIT:
                    why = "slow: one turn"
                elif guess > LIMIT and not args.all:
                    why = f"about {guess:.0f} s"
                elif name == "torch-compile" and log2_batch != args.log2_batches[0] and not args.all:
                    why = "compiles for tens of seconds: only the first batch"
                if why:
                    skipped.append({**where, "peer": name, "turn": turn, "why": why})
                    continue
                dropouts = (0.0, DROPOUT) if name in ("coopnet", "torch", "torch-compile") else (0.0,)
                job: dict[str, Any] = {"repeat": args.repeat, "modes": [(m, p) for m in MODES for p in dropouts]}
                job["expected"] = {k: v for k, v in expected.items() if not turn and (name == "coopnet" or k == "0.0")}
                start = time.monotonic()
                answer = workers[name].ask(left + 60, **where, **job, until=time.time() + left, again=turn > 0)
                spent[name].setdefault((width, log2_batch), time.monotonic() - start)
                for entry in answer.get("ok", []):
                    found.setdefault(tuple(entry[k] for k in ("peer", "mode", "dropout", "frozen")), []).append(entry)
                if "error" in answer:
                    skipped.append({**where, "peer": name, "turn": turn, "why": answer["error"]})
                print(summary(name, where, answer), flush=True)
            entries.extend(merge(turns) for turns in found.values())
            results["seconds"] = round(time.monotonic() - begin, 1)
            name = f"networks-{args.target}" if args.target else "networks"
            args.path = common.write(name, args.backend, results, args.out)
    finally:
        for process in workers.values():
            process.stop(patience=5)
    return results


def merge(turns: list[dict]) -> dict:
    """The entry of the first turn with the median times of all."""
    result = {**turns[0], "turns_ms": [t["wall_ms"] for t in turns]}
    for name in ("wall_ms", "kernel_ms"):
        values = [t[name] for t in turns if t[name] is not None]
        result[name] = statistics.median(values) if values else None
    return result


def settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "network": f"{N_IN} -> w -> w -> w -> {N_OUT}, ReLU, no bias",
        "precision": "half" if args.backend == "cuda" else "single",
        "training": "forward, L2 loss against fixed targets, weight gradients; no optimizer; Dr.Jit peers form the "
        "summands of the loss, PyTorch also their sum",
        "gradients": f"worst layer, relative to double precision in the Frobenius norm; inputs in [0, 1), targets in "
        f"[-12, -11), below every output, so that dL/dy has one sign; loss scaled by {LOSS_SCALE:g}",
        "wall_ms": "median after warming up; waits for the result; turns_ms: of each turn, wall_ms being their median",
        "kernel_ms": "Dr.Jit's kernel history (no NumPy products); CUDA events around ten calls for PyTorch on CUDA",
        "first_call_s": "tracing and compiling with empty caches; later variants of a peer find earlier kernels",
        "peak_bytes": "Dr.Jit's or PyTorch's allocator, inputs included; null for PyTorch on the CPU",
        "dropout": DROPOUT,
        "target": args.target,
        "widths": args.widths,
        "log2_batches": args.log2_batches,
        "budget_s": args.budget,
        "load_before": os.getloadavg()[0],
    }


def summary(name: str, where: dict, answer: dict) -> str:
    text = f"w={where['width']:<4} 2^{where['log2_batch']:<3} {name:13}"
    if "error" in answer:
        return text + answer["error"]
    parts = []
    for e in answer["ok"]:
        label = e["mode"] + ("+dropout" if e["dropout"] else "") + {True: " frozen", False: "", None: ""}[e["frozen"]]
        error = "" if e["gradient_error"] is None else f" (error {e['gradient_error']:.0e})"
        parts.append(f"{label} {e['wall_ms']:.3g} ms{error}")
    return text + ", ".join(parts)


def numbers(text: str) -> list[int]:
    return [int(v) for v in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", help="llvm, cuda or auto")
    parser.add_argument("--widths", type=numbers, default=[64, 32, 128, 16], help="such as 16,64")
    parser.add_argument("--log2-batches", type=numbers, help="such as 17,12; the first one is the headline")
    parser.add_argument("--peers", help=f"of {', '.join(PEERS['cuda'])}, separated by commas")
    parser.add_argument("--repeat", type=int, default=400, help="calls of a median, fewer where they are slow")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no more is measured")
    parser.add_argument("--quick", action="store_true", help="small batches")
    parser.add_argument("--all", action="store_true", help="also what is left out because it takes long")
    parser.add_argument("--target", choices=common.TARGETS, help="let all libraries play this processor (LLVM backend)")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder of the result file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.backend, args.target)
        return
    from coopnet.backend import require

    args.backend = require(args.backend)
    args.log2_batches = args.log2_batches or (QUICK if args.quick else BATCHES)[args.backend]
    args.peers = common.chosen_peers(parser, args, PEERS, CLASSES)
    args.path = None
    with tempfile.TemporaryDirectory() as scratch:
        measure(args, Path(scratch))
    print("written to", args.path)


if __name__ == "__main__":
    main()
