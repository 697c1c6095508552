"""Whether all processes draw the same batch, of which each takes its share."""

from __future__ import annotations

from typing import Any

import drjit as dr
import numpy as np

from ...checks import shown
from ...random.key import Key
from ..divergence import arrays
from ..sampling import samples_by_index
from .replicas import Replicas

#: Entries of an array that are compared, and how many of them may be others: processors of other types round otherwise,
#: which may move a sample to another place.
ENTRIES, OTHERS = 64, 16
#: How far from each other they may be: as a part of the largest.
TOLERANCE = 1e-2


def compare_batches(replicas: Replicas, step: Any, seed: int, number: int) -> None:
    """Raise ``ValueError``, on all, unless the processes draw the same in step ``number``.

    What is decorated with ``by_index`` is not looked at: each process draws its own samples alone, and may keep the
    data of no others.
    """
    if replicas.alone or samples_by_index(step.batch) is not None:
        return
    own: list = []
    with replicas.noting():
        own = _entries(step, seed, number)
    found = replicas.exchange("the first batch", own)
    for rank, other in enumerate(found):
        if what := _difference(found[0], other, rank):
            replicas.failed = True
            cure = "have all read the same data, or draw by number: coopnet.training.by_index"
            raise ValueError(f"fit: the processes differ: {what}; {cure}.")


def _entries(step: Any, seed: int, number: int) -> list[tuple[int, list[float]]]:
    """Of every floating point array of the batch, its size and some entries."""
    key = Key(dr.opaque(dr.uint64_array_t(step.float32), seed), None, dr.opaque(step.uint32, number))
    with dr.suspend_grad():
        drawn = list(arrays(step.draw(key)))
        dr.eval(drawn)  # in one kernel
        places = [np.linspace(0, dr.width(v) - 1, min(ENTRIES, dr.width(v))).astype(np.uint32) for v in drawn]
        parts = [dr.gather(type(v), v, step.uint32(i)) for v, i in zip(drawn, places, strict=True)]
    return [(dr.width(v), part.numpy().astype(float).tolist()) for v, part in zip(drawn, parts, strict=True)]


def _difference(first: list, other: list, rank: int) -> str:
    """What two processes have drawn otherwise, in words."""
    sizes = [[size for size, _ in found] for found in (first, other)]
    if sizes[0] != sizes[1]:
        return f"the arrays of a batch have {shown(sizes[0])} entries on process 0 and {shown(sizes[1])} on {rank}"
    for i, ((size, a), (_, b)) in enumerate(zip(first, other, strict=True)):
        largest = max((abs(v) for v in a if np.isfinite(v)), default=0.0)
        wrong = np.flatnonzero(~np.isclose(a, b, rtol=0, atol=TOLERANCE * largest, equal_nan=True))
        if len(wrong) * ENTRIES > OTHERS * len(a):
            k = int(wrong[0])
            entry = f"entry {(size - 1) * k // max(len(a) - 1, 1)} of array {i} of the first batch"
            return f"{entry} is {a[k]:.6g} on process 0 and {b[k]:.6g} on process {rank}"
    return ""
