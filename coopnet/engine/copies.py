"""Copies of a network's matrices in the order in which a CPU multiplies fastest, where they pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit.scopes import symbolic
from .blocks import copy, pays
from .ops import Affine, Op, affine, buffers, rebase

#: Samples from which on evaluating a network is worth copying its matrices.
SAMPLES = 512


def copied(ops: Sequence[Op], xs: Sequence[Any], back: bool = False) -> Sequence[Op]:
    """The same ops for the input ``xs``, with copies of matrices that are evaluated; ``back``: for the way back, too.

    Not for networks whose weights have gradients.
    """
    found = affine(ops)
    if not any(pays(op.weights, transposed) for op in found for transposed in ((False, True) if back else (False,))):
        return ops
    if symbolic() or max(dr.width(v) for v in xs) < SAMPLES or any(dr.grad_enabled(v) for v in xs):
        return ops
    packed = buffers(ops)
    own = rebase(ops, packed, packed)
    copy_matrices(affine(own), affine(own) if back else ())
    return own


def copy_matrices(forth: Sequence[Affine], back: Sequence[Affine] = ()) -> None:
    """Have ops of one's own multiply with copies of their matrices, on the way ``forth`` or ``back``.

    Not in symbolic code. What the caller has scheduled is evaluated with the copies.
    """
    for op in forth:
        op.forth = copy(op.weights, transposed=False)
    for op in back:
        op.back = copy(op.weights, transposed=True)
    made = [*(op.forth for op in forth), *(op.back for op in back)]
    dr.eval([part.buffer for blocks in made if blocks is not None for part in blocks.parts])
