"""Memory that differentiating a batch takes, and how many samples of it are processed at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import drjit as dr

from ..jit.native.core import cuda_device
from ..jit.native.cuda import memory
from ..random.key import Key
from . import limits
from .affine import Affine
from .chunks import even_size
from .multipliers import described
from .ops import Op, affine, matrices
from .row_vectors import columns
from .situation import Situation
from .strategies import keeps_output, strategy_of


def inputs(op: Affine, itemsize: int) -> int:
    """Numbers in a row of the input of ``op``, with that of :func:`~.affine.with_bias`."""
    return columns(op.weights.shape[1] + (op.bias is not None), itemsize)


def bytes_per_sample(ops: Sequence[Op], itemsize: int) -> int:
    """Memory that one sample's activations and cotangents take when spilled."""
    return itemsize * sum(inputs(op, itemsize) + columns(op.weights.shape[0], itemsize) for op in affine(ops))


def outputs_per_sample(ops: Sequence[Op], itemsize: int, s: Situation) -> int:
    """Bytes of one sample's layer outputs that are kept for the backward pass, in training without dropout."""
    kept = kept_outputs(ops, unneeded_outputs(ops, None, 1), s)
    return itemsize * sum(columns(op.weights.shape[0], itemsize) for op in kept)


def kept_bytes(ops: Sequence[Op]) -> int:
    """Most bytes of activations in memory at a time: on a GPU, a share of its memory if that is more."""
    on_gpu = dr.backend_v(matrices(ops)[0].buffer) == dr.JitBackend.CUDA
    return max(limits.KEPT_BYTES, int(limits.KEPT_SHARE * memory(cuda_device()))) if on_gpu else limits.KEPT_BYTES


def chunk_size(ops: Sequence[Op], samples: int, itemsize: int, vectors: int = 1) -> int:
    """Samples that are spilled at a time, each with ``vectors`` vectors."""
    return even_size(samples, kept_bytes(ops) // (vectors * bytes_per_sample(ops, itemsize)))


def kept_outputs(ops: Sequence[Op], unneeded: Sequence[Affine], s: Situation) -> list[Affine]:
    """The layers whose outputs are kept beside the inputs of all layers, without the ``unneeded`` ones.

    On a CPU, they are the layers that are multiplied between kernels. On a GPU, they are those with long outputs, if
    there are no branches.
    """
    if not s.cuda:
        chosen = "between kernels"
        layers = [op for op in affine(ops) if strategy_of(described(op.weights, False, chosen)) == chosen]
    elif s.network.branches:
        layers = []
    else:
        pairs = itertools.pairwise(ops)
        followed = [op for op, after in pairs if isinstance(op, Affine) and not after.affine]
        layers = [op for op in followed if keeps_output(op.weights.shape)]
    return [op for op in layers if op not in unneeded]


def unneeded_outputs(ops: Sequence[Op], key: Key | None, vectors: int) -> list[Affine]:
    """Layers whose output is not needed in the backward pass, if the inputs of all layers are known.

    Between such a layer and the next one is a single activation (with or without dropout) whose derivative follows from
    its output.
    """
    result = [layer for op in ops for body in op.bodies for layer in unneeded_outputs(body, key, vectors)]
    for op, after, last in zip(ops, ops[1:], ops[2:], strict=False):
        enough = after.needs_only_output(key, vectors)
        if enough and isinstance(op, Affine) and isinstance(last, Affine):
            result.append(op)
    return result
