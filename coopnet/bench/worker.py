"""The process of one peer: ``python -m coopnet.bench.worker``, called by :mod:`coopnet.bench.compare` in lines of JSON.

In a process of its own, a peer is not disturbed by the thread pools of others, and cannot end them if it dies.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from .peers import PEERS, Peer
from .problem import error, gradients

PREFIX = "RESULT "
WARMUP = 3


class Runner:
    """Measures one peer in turns, and keeps its compiled functions between them."""

    def __init__(self, peer: str, backend: str, width: int, batch: int):
        self.peer: Peer = PEERS[peer](backend, width, batch)
        self.ways: dict[str, dict] = {mode: dict(self.peer.calls(mode)) for mode in ("infer", "train")}
        self.warm: set[tuple[str, str]] = set()

    def turn(self, mode: str, seconds: float) -> dict[str, list[float]]:
        """Milliseconds of single calls, by way to call: about ``seconds`` each, and at least one."""
        results = {}
        for way, call in self.ways[mode].items():
            if (mode, way) not in self.warm:
                for _ in range(WARMUP):
                    call()
                self.warm.add((mode, way))
            times: list[float] = []
            end = time.perf_counter() + seconds
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                times.append(1e3 * (time.perf_counter() - start))
            results[way] = times
        return results

    def gradient_errors(self) -> dict[str, float]:
        """The largest relative error of a weight gradient against NumPy in double precision, by way to call."""
        peer = self.peer
        right = gradients(peer.width, peer.batch, peer.half)
        return {way: error(peer.gradients(call()), right) for way, call in self.ways["train"].items()}


def serve() -> None:
    """Answer jobs, one JSON line each, until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output that libraries print is not an answer
    runner: Any = None
    for line in sys.stdin:
        try:
            job = json.loads(line)
            what = job.pop("job")
            if what == "start":
                runner = Runner(**job)
                answer: dict = {"ok": None}
            else:
                answer = {"ok": getattr(runner, what)(**job)}
        except Exception as error:  # reported, and the peer is left out
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(PREFIX + json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
