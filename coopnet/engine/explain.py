"""How the engine will compute a weight gradient, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import drjit as dr

from ..backend import namespace
from ..checks import shown_bytes
from .banks import banks_for, banks_in_scope
from .lane_sums import lane_bytes
from .memory import bytes_per_sample, chunk_size, outputs_per_sample
from .ops import Op
from .products import library
from .row_vectors import spilled
from .situation import Network, here
from .strategies import GRADIENTS, choose


@dataclass(frozen=True)
class Explanation:
    """How the weight gradient of a batch is computed.

    ``path`` is ``"spill"``, ``"lane sums"``, ``"store"``, ``"banks"`` or ``"builtin"``, and ``reason`` says why.
    ``memory`` is in bytes, without inputs and outputs. ``chunks`` is the number of chunks of a spilled batch, and
    ``banks`` the number of banks.
    """

    samples: int
    backend: str
    frozen: bool
    path: str
    reason: str
    memory: int
    chunks: int = 1
    banks: int = 1

    def __str__(self) -> str:
        where = f"{self.backend.upper()}, {self.samples} samples, {'inside' if self.frozen else 'outside'} dr.freeze"
        memory = shown_bytes(self.memory)
        how = {
            "spill": f"activations and deltas are written out in {self.chunks} chunk(s), {memory} at a time, and "
            f"multiplied",
            "lane sums": f"each lane sums the outer products of its own samples, {memory} in all",
            "store": f"activations are written out in the forward pass, and deltas in the backward pass, in "
            f"{self.chunks} chunk(s), {memory} at a time, and multiplied",
            "banks": f"outer products are added up in the kernel, in {self.banks} bank(s), {memory} in all",
            "builtin": "outer products are added up in the kernel by Dr.Jit's own operation",
        }[self.path]
        return f"{where}: {self.path}, because {self.reason}; {how}."


def explain(
    ops: Sequence[Op], backend: str, samples: int, frozen: bool, fit: bool, steps: int
) -> Explanation:  # fmt: skip
    """Explain the gradient of ``ops`` over ``samples`` samples, in one of ``steps`` steps of :func:`coopnet.fit` if
    ``fit``.
    """
    leaf = namespace(backend).Float
    caller = frozen and fit and library(dr.backend_v(leaf))
    s = here(Network(ops), leaf, samples, frozen=frozen, caller=caller, runs=steps if caller else 0)
    strategy, reason = choose(GRADIENTS, s)
    path = "banks" if strategy in ("loop banks", "loop sums") else strategy
    memory, chunks, banks = 0, 1, 1
    if path in ("spill", "store") and s.network.layers:
        itemsize = dr.itemsize_v(spilled(type(s.network.buffers[0])))
        chunk = chunk_size(ops, samples, itemsize)
        outputs = outputs_per_sample(ops, itemsize, s) if path == "store" else 0
        sample = bytes_per_sample(ops, itemsize) + outputs
        chunks, memory = -(-samples // chunk), chunk * sample
    elif path == "lane sums":
        memory = lane_bytes(ops, samples)
    elif path == "banks":
        banks = {"banks": banks_for(samples), "loop banks": banks_in_scope(samples), "loop sums": 1}[strategy]
        memory = banks * sum(dr.width(b) * dr.itemsize_v(type(b)) for b in s.network.buffers)
    return Explanation(samples, backend, frozen, path, reason, memory, chunks, banks)
