"""Affine transforms as scenes give them, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..checks import check


def rows(where: str, name: str, transform: Any, needed: str, *sizes: int) -> list[list[float]]:
    """The first three rows of an affine transform of (x, y, z): one of Mitsuba's in any of its precisions, or a matrix.

    A transform of 3 x 3 numbers is one of (x, y).
    """
    try:
        matrix = np.array(getattr(transform, "matrix", transform), np.float64)
    except Exception:
        matrix = np.zeros(0)
    affine = matrix.shape in [(n, n) for n in sizes] and np.array_equal(matrix[-1], np.eye(len(matrix))[-1])
    check(affine, where, name, transform, needed, TypeError)
    if len(matrix) == 3:
        matrix = np.insert(np.insert(matrix, 2, 0, axis=0), 2, [0, 0, 1, 0], axis=1)
    return matrix[:3].tolist()


def matrix(rows: list[list[float]]) -> list[list[float]]:
    """The 4 x 4 matrix of three :func:`rows`."""
    return [*rows, [0.0, 0.0, 0.0, 1.0]]


def applied(matrix: Any, p: Any) -> list:
    """The three coordinates of ``p`` after an affine transform of three ``rows``."""
    return [x * p[0] + y * p[1] + z * p[2] + w for x, y, z, w in matrix]
