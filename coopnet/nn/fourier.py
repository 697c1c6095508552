"""Random Fourier features."""

from __future__ import annotations

import math
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_flag, check_in_features, check_number, check_positive, check_unsigned
from ..checks.sizes import check_entries, check_features
from ..jit.unpacked import Constant, Unpacked
from ..kernels.small_matrix import project
from ..random.philox import generate, round_keys
from .arguments import fields
from .encoding import Encoding
from .parameters import ParameterArray


class Fourier(Encoding):
    r"""Random Fourier features (Rahimi and Recht 2007; Tancik et al. 2020, eq. 5).

    Coordinates :math:`x` become :math:`\sin(2\pi b_j \cdot x),\ \cos(2\pi b_j \cdot x)` for
    :math:`j = 1, \dots, n`, one pair after the other. The frequencies :math:`b_j \in \mathbb{R}^d`, in periods per
    unit of the coordinates, are drawn once from the normal distribution :math:`N(0, \mathrm{scale}^2)`: larger scales
    fit finer detail and generalize worse. Phases are computed in single precision on every backend and reduced to one
    period.

    The draw depends on ``seed`` alone, not on the seed of ``build()``. It is the same on every machine: Philox4x32
    words and the transform of Box and Muller (1958). So fixed frequencies are not parameters and are not saved. Trained
    ones are the entry ``"data"`` of the layer's mapping, in single precision, the :math:`d` components of a frequency
    side by side.

    Args:
        n_frequencies: number of frequencies :math:`n`.
        scale: their standard deviation per component.
        trained: are the frequencies parameters?
        seed: of the draw, an int in [0, 2^64).
        in_features: number of coordinates :math:`d`; -1 takes it from ``alloc`` or the network.

    Returns:
        ``2 * n_frequencies`` features.

    Raises:
        ValueError: arguments out of range, or the layer is called before it is allocated.

    >>> field = cn.NeuralField(cn.Fourier(64, scale=10.0, in_features=2), cn.MLP(out_features=3)).build()
    """

    def __init__(
        self, n_frequencies: int = 64, scale: float = 10.0, trained: bool = False, seed: int = 0, in_features: int = -1
    ):
        self.n_frequencies = check_positive("Fourier", "n_frequencies", n_frequencies)
        self.scale = check_number("Fourier", "scale", scale, 0)
        check_features("Fourier", "n_frequencies", n_frequencies, 2 * self.n_frequencies)
        self.trained = check_flag("Fourier", "trained", trained)
        self.seed = check_unsigned("Fourier", "seed", seed)
        self.in_features = check_in_features("Fourier", in_features)
        self.frequencies: Unpacked = Constant()

    DRJIT_STRUCT = fields(__init__, frequencies=Unpacked)

    def width(self, size: int) -> int:
        return 2 * self.n_frequencies

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        matrix = self._matrix(coordinates)
        y: list[Any] = []
        for periods in project(matrix, [type(matrix)(x) for x in coordinates]):
            y += dr.sincos((periods - dr.round(periods)) * (2 * math.pi))
        # tangents get a lane for every sample; otherwise each matrix entry's gradient would be a separate sum
        lanes = dr.zeros(type(matrix), dr.width(coordinates))
        dys = []
        for tangent in tangents:
            parts: list[Any] = []
            for i, periods in enumerate(project(matrix, [type(matrix)(t) + lanes for t in tangent])):
                s, c = y[2 * i : 2 * i + 2]
                slope = periods * (2 * math.pi)
                parts += [slope * c, -slope * s]
            dys.append(parts)
        return y, dys

    def _matrix(self, coordinates: list) -> Any:
        matrix = self.frequencies.value
        if matrix is None:
            raise ValueError("Fourier: the layer has no frequencies yet; call net = net.alloc(dtype, size) first.")
        self._same_backend(type(coordinates[0]), type(matrix.data))
        return matrix.data

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        layer, width = super()._alloc(dtype, size, rng)
        # the bytes on the host: frequencies in double precision, and the random words
        check_entries("Fourier", "frequencies", (self.n_frequencies, layer.in_features), 64)
        values = self.scale * normals(self.n_frequencies * layer.in_features, self.seed)
        data = dr.float32_array_t(dr.array_t(dtype))(values.astype(np.float32))
        layer.frequencies = (Unpacked if self.trained else Constant)(ParameterArray(data))
        return layer, width


def normals(n: int, seed: int) -> np.ndarray:
    """``n`` samples of the standard normal distribution in double precision, from Philox4x32."""
    pairs = np.arange((n + 1) // 2, dtype=np.uint32)
    zero, key = np.uint32(0), (np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32))
    words = generate((pairs, zero, zero, zero), round_keys(key))
    # each pair takes two numbers of 53 bits, the first of them never zero
    high, low = (np.asarray(w, np.uint64) for w in (words[0], words[1]))
    u = (((high << np.uint64(32)) + low >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
    angle = 2 * np.pi * np.asarray(words[2], np.float64) * 2.0**-32
    radius = np.sqrt(-2 * np.log(u))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:n]
