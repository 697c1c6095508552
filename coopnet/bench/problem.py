"""The problem that all peers compute: one network, its inputs and targets, and the exact gradients.

The network is 16 -> w -> w -> w -> 3 with ReLU and no biases, single precision on LLVM and half precision on CUDA. A
training step is forward, L2 loss against fixed targets and the gradients of all weights, without an optimizer. Targets
lie below every output, so that the derivatives of the loss have one sign: the worst case for sums in half precision.
"""

from __future__ import annotations

import itertools

import numpy as np

from ..reference import mlp, mlp_vjp

N_IN, N_OUT, DEPTH = 16, 3, 3
#: Half-precision gradients of a mean over many samples would underflow; every peer scales its loss by this.
LOSS_SCALE = 1024.0
_CHUNK = 1 << 14


def matrices(width: int, half: bool) -> list[np.ndarray]:
    """He-initialized weights ``(out, in)``, already rounded to the precision that they are used in."""
    rng = np.random.default_rng(width)
    sizes = [N_IN] + [width] * DEPTH + [N_OUT]
    made = [rng.standard_normal((o, i)) * np.sqrt(2 / i) for i, o in itertools.pairwise(sizes)]
    return [w.astype(np.float16 if half else np.float32) for w in made]


def data(batch: int, half: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs ``(16, n)`` in [0, 1) and targets ``(3, n)`` in [-12, -11)."""
    rng, dtype = np.random.default_rng(7), np.float16 if half else np.float32
    x = rng.random((N_IN, batch), np.float32).astype(dtype)
    return x, (rng.random((N_OUT, batch), np.float32) - 12).astype(dtype)


def gradients(width: int, batch: int, half: bool) -> list[np.ndarray]:
    """The gradients of all matrices in double precision, by NumPy."""
    weights = [w.astype(np.float64) for w in matrices(width, half)]
    x, t = (v.astype(np.float64) for v in data(batch, half))
    total = [np.zeros(w.shape) for w in weights]
    dtype = np.float16 if half else np.float32
    for start in range(0, batch, _CHUNK):
        part = slice(start, start + _CHUNK)
        y = mlp(weights, x[:, part], "relu", dtype=dtype)
        dy = 2 * (y - t[:, part]) * (LOSS_SCALE / (N_OUT * batch))
        grads = mlp_vjp(weights, x[:, part], dy, "relu", dtype=dtype)[2]
        for a, b in zip(total, grads, strict=True):
            a += b
    return total


def error(gradients: list[np.ndarray], exact: list[np.ndarray]) -> float:
    """The largest relative error of a matrix, in the Frobenius norm."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(gradients, exact, strict=True))
