"""A user's own frozen functions on the CPU, beside PyTorch: evaluations, gradients, and steps with Adam.

The network is 16 -> w -> w -> w -> 3 with ReLU and no biases, in single precision; the loss is the mean squared error
against given targets. coopnet's functions are frozen (``dr.freeze``), as a user writes them who does not call
``coopnet.fit``; PyTorch is eager, with Adam's fused kernel. Tasks:

- ``forward``: an evaluation without gradients;
- ``gradient``: the loss and the gradients of all weights;
- ``input gradient``: the gradient of a loss with respect to the inputs, with fixed weights;
- ``step``: the same and Adam; ``step, dropout``: the same with dropout 0.1 behind every hidden layer.

Every peer has a process of its own, one works at a time, and they take turns of a few calls. A turn's time is that of
its fastest call, which other users of the processor disturb least, and a row has the fastest turn of each peer: the
time on the clock (``wall_ms``) and that of the process on all its processors (``cpu_ms``). On a busy machine only the
latter can be compared, with ``--threads 1``. ``--target`` lets both play another processor.

    PYTHONPATH=. python benchmarks/own_steps.py --backend llvm
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import common

N_IN, N_OUT, DEPTH, RATE, DROPOUT = 16, 3, 3, 1e-3, 0.1
TASKS = ("forward", "gradient", "input gradient", "step", "step, dropout")
PEERS = ("coopnet", "torch")
#: Seconds that a turn takes, and calls of it at least.
SECONDS, CALLS = 0.15, 2


def by_coopnet(task: str, width: int, samples: int) -> Callable[[], Any]:
    import drjit as dr
    import numpy as np
    from drjit.llvm.ad import Float, UInt32
    from drjit.opt import Adam

    import coopnet as cn

    dropout = DROPOUT if "dropout" in task else 0.0
    field = cn.NeuralField(None, cn.MLP(N_IN, N_OUT, width=width, depth=DEPTH, dropout=dropout)).build("llvm", seed=1)
    rng = np.random.default_rng(0)
    x, t = ([Float(rng.random(samples, np.float32)) for _ in range(n)] for n in (N_IN, N_OUT))
    opt = Adam(lr=RATE)
    opt.update(field)
    numbers = itertools.count()

    def loss(field: Any, x: list, t: list, number: Any) -> Any:
        y = field(x, cn.Key(0, step=number) if dropout else None)
        return sum(dr.square(a - b) for a, b in zip(y, t, strict=True)) * (1 / (N_OUT * samples))

    @dr.freeze
    def forward(field: Any, x: list) -> Any:
        return field(x)

    @dr.freeze
    def input_gradient(field: Any, x: list, t: list) -> Any:
        x = [Float(v) for v in x]
        dr.enable_grad(x)
        dr.backward(loss(field, x, t, None))
        return dr.grad(x)

    @dr.freeze
    def gradient(field: Any, opt: Any, x: list, t: list) -> Any:
        field.update(opt)
        value = loss(field, x, t, None)
        dr.backward(value)
        found = {name: dr.grad(opt[name]) for name in opt}
        dr.clear_grad(list(opt.values()))
        return dr.detach(value), found

    @dr.freeze
    def step(field: Any, opt: Any, x: list, t: list, number: Any) -> Any:
        field.update(opt)
        value = loss(field, x, t, number)
        dr.backward(value)
        opt.step()
        return dr.detach(value)

    def call() -> None:
        if task == "forward":
            found = forward(field, x)
        elif task == "input gradient":
            found = input_gradient(field, x, t)
        elif task == "gradient":
            found = gradient(field, opt, x, t)
        else:
            found = step(field, opt, x, t, dr.opaque(UInt32, next(numbers)))
        dr.eval(found)
        dr.sync_thread()

    return call


def by_torch(task: str, width: int, samples: int) -> Callable[[], Any]:
    import torch
    from torch import nn

    dropout = "dropout" in task
    layers: list[Any] = []
    for i, o in itertools.pairwise([N_IN] + [width] * DEPTH + [N_OUT]):
        layers += [nn.Linear(i, o, bias=False), nn.ReLU()] + ([nn.Dropout(DROPOUT)] if dropout else [])
    net = nn.Sequential(*layers[: -2 if dropout else -1])
    x, t = torch.rand(samples, N_IN), torch.rand(samples, N_OUT)
    inputs = x.clone().requires_grad_()
    parameters = [p.requires_grad_(task != "input gradient") for p in net.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, fused=True)

    def call() -> None:
        if task == "forward":
            with torch.inference_mode():
                net(x)
        elif task == "input gradient":
            torch.autograd.grad(nn.functional.mse_loss(net(inputs), t), inputs)
        elif task == "gradient":
            torch.autograd.grad(nn.functional.mse_loss(net(x), t), parameters)
        else:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(net(x), t).backward()
            optimizer.step()

    return call


def worker(peer: str, threads: int, target: str) -> None:
    """Answer jobs, a line of JSON each: a turn, of the last job if it is the same."""
    if peer == "torch":
        import torch

        torch.set_num_threads(threads)
    else:
        import drjit as dr

        if target:
            from coopnet.jit.native.core import set_llvm_target

            set_llvm_target(target, common.TARGETS[target][0])
        dr.set_thread_count(threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    known, call = "", None
    for line in sys.stdin:
        if line != known:
            known, call = line, (by_torch if peer == "torch" else by_coopnet)(**json.loads(line))
            call()
        assert call
        answers.write(json.dumps([min(times) for times in zip(*spans(call), strict=True)]) + "\n")
        answers.flush()


def spans(call: Callable[[], Any]) -> Iterator[tuple[float, float]]:
    """Milliseconds of calls, on the clock and of the process."""
    end = time.perf_counter() + SECONDS
    for i in itertools.count():
        wall, cpu = time.perf_counter(), time.process_time()
        if i >= CALLS and wall > end:
            return
        call()
        yield 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        common.empty_caches()
        worker(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return
    args = common.arguments(
        __doc__,
        widths=dict(default="16,32,64,128,256", help="such as 16,64"),
        log2_samples=dict(default="12,14,16,18", help="of a batch, such as 12,14"),
        tasks=dict(default=";".join(TASKS), help="separated by semicolons"),
        turns=dict(type=int, default=7, help="turns of each peer"),
        threads=dict(type=int, default=os.cpu_count(), help="threads of each peer"),
        peers=dict(default=",".join(PEERS), help="separated by commas"),
        target=dict(choices=common.TARGETS, help="let both play this processor"),
    )
    playing = common.TARGETS[args.target][1] if args.target else {}
    workers = {
        peer: subprocess.Popen(
            [sys.executable, __file__, "--worker", peer, str(args.threads), args.target or ""],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | playing,
        )
        for peer in args.peers.split(",")
    }  # fmt: skip
    rows = []
    for log2, width, task in itertools.product(
        map(int, args.log2_samples.split(",")), map(int, args.widths.split(",")), args.tasks.split(";")
    ):
        job = json.dumps({"task": task, "width": width, "samples": 1 << log2})
        turns: dict[str, list[tuple[float, float]]] = {peer: [] for peer in workers}
        for _ in range(args.turns):
            for peer, process in workers.items():
                assert process.stdin and process.stdout
                process.stdin.write(job + "\n")
                process.stdin.flush()
                if not (answer := process.stdout.readline()):
                    raise SystemExit(f"{peer} ended: see above")
                turns[peer].append(tuple(json.loads(answer)))
        row: dict[str, Any] = {"width": width, "log2_samples": log2, "task": task, "threads": args.threads}
        for i, name in enumerate(("wall_ms", "cpu_ms")):
            row[name] = {peer: min(turn[i] for turn in times) for peer, times in turns.items()}
        row["turns_ms"] = turns
        rows.append(row)
        said = row["cpu_ms" if args.threads == 1 else "wall_ms"]
        times = ", ".join(f"{peer} {ms:.3f}" for peer, ms in said.items())
        ratio = f", {said['torch'] / said['coopnet']:.2f}" if len(said) == len(PEERS) else ""
        print(f"w={width:<4} 2^{log2} {task}: {times} ms{ratio}", file=sys.stderr, flush=True)
        common.write(f"own-steps-{args.target}" if args.target else "own-steps", args.backend, rows, args.out)
    for process in workers.values():
        assert process.stdin
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
