"""Rays through the pixels of pinhole cameras."""

from __future__ import annotations

from typing import Any

import numpy as np

from .random import Array


def camera_rays(
    to_world: Array, lens: Array, width: int, height: int, pixels: Array, place: Any = (0.5, 0.5)
) -> tuple[Array, Array]:
    """Origins and directions, ``(3, rays)`` each, for poses ``(pictures, 3, 4)`` and lenses ``(pictures, 4)``.

    >>> pose = np.eye(3, 4)
    >>> o, d = ref.camera_rays(pose[None], np.array([[1.0, 1.0, 1.0, 0.5]]), 2, 1, np.array([0, 1]))
    >>> d.round(4).tolist()
    [[-0.4472, 0.4472], [0.0, 0.0], [-0.8944, -0.8944]]
    """
    picture, rest = np.divmod(pixels, width * height)
    row, column = np.divmod(rest, width)
    fx, fy, cx, cy = np.asarray(lens, np.float64)[picture].T
    poses = np.asarray(to_world, np.float64)[picture]
    k = np.stack([(column + place[0] - cx) / fx, -(row + place[1] - cy) / fy, -np.ones(len(pixels))])
    d = np.einsum("nij,jn->in", poses[:, :, :3], k)
    return poses[:, :, 3].T, d / np.linalg.norm(d, axis=0)
