"""Pinhole cameras: from pixels to rays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import numpy as np

from ..backend import namespace, require
from ..checks import check, check_backend, check_lanes, check_positive, check_type, ensure, entries, is_int, shown
from ..checks.sizes import MAX_ENTRIES
from ..jit import kinds
from ..jit.kernel_parameters import kept
from ..jit.owned import from_numpy
from ..jit.scopes import check_outside
from ..random import streams
from ..random.key import Key
from ..training.sampling import integers
from .arguments import number, vector_type


class Cameras:
    r"""Pinhole cameras with pictures of one size: rays through their pixels, random pixels, and gradients of poses.

    A *pose* is a matrix from a camera's coordinates to the world's, whose columns are where the camera's right, up and
    back point, and where it is. So a camera looks along its :math:`-z`, as in OpenGL and in ``transforms.json`` of NeRF
    and nerfstudio (:func:`load_cameras`); :func:`look_at` makes a pose. Pixels are numbered row by row from the upper
    left corner, picture by picture: row :math:`r` and column :math:`c` of picture :math:`v` have the number
    :math:`(v H + r) W + c`. A pose :math:`(R \mid t)` turns a place :math:`(u, w)` in that pixel into the ray

    .. math::
        o = t, \qquad
        d = \frac{R k}{\lVert R k \rVert}, \qquad
        k = \Big(\frac{c + u - c_x}{f_x}, -\frac{r + w - c_y}{f_y}, -1\Big).

    It is a Dr.Jit PyTree of two tensors, ``to_world`` of shape ``(pictures, 3, 4)``, the poses, and ``lens`` of shape
    ``(pictures, 4)``: :math:`f_x, f_y, c_x, c_y` in pixels. Rays have gradients by both.

    Args:
        to_world: poses, of shape ``(3, 4)``, ``(4, 4)``, ``(pictures, 3, 4)`` or ``(pictures, 4, 4)``.
        width, height: of a picture, in pixels.
        fov: the angle that a picture is wide, in degrees; a number, or one for each picture.
        focal: :math:`f_x = f_y` in pixels, in place of ``fov``; a number, two, or two for each picture.
        center: :math:`(c_x, c_y)`, also for each picture; the middle, if it is not given.
        backend: ``"llvm"``, ``"cuda"`` or ``"auto"``.

    Raises:
        ValueError, TypeError: arguments of other kinds or out of range; poses that are singular or not finite.
        BackendError: no such backend here.

    >>> pose = cn.render.look_at(origin=(0, -4, 2), target=(0, 0, 0))
    >>> cameras = cn.render.Cameras(pose, width=64, height=48, fov=40)
    >>> o, d = cameras.rays()
    """

    DRJIT_STRUCT = {"width": int, "height": int, "to_world": object, "lens": object}

    def __init__(
        self, to_world: Any, width: int, height: int, fov: Any = None, *, focal: Any = None, center: Any = None,
        backend: str = "auto",
    ):  # fmt: skip
        where = "Cameras"
        poses = numbers(where, "to_world", to_world)
        shape = poses.shape
        valid = len(shape) in (2, 3) and shape[-2:] in ((3, 4), (4, 4)) and shape[0] > 0
        ensure(
            valid, f"{where}: to_world has the shape {shape}; (3, 4), (4, 4), or as many for each picture are needed."
        )
        poses = poses[..., :3, :].reshape(-1, 3, 4)
        flat = abs(np.linalg.det(poses[..., :3])) < 1e-9
        ensure(not flat.any(), f"{where}: to_world[{int(flat.argmax())}] is singular; its axes lie in a plane.")
        self.width, self.height = check_positive(where, "width", width), check_positive(where, "height", height)
        count = len(poses) * self.width * self.height
        ensure(count <= MAX_ENTRIES, f"{where}: the pictures have {shown(count)} pixels; fewer than 2^32 are possible.")
        lens = np.concatenate([self._focal(where, len(poses), fov, focal), self._center(where, len(poses), center)], 1)
        ns = namespace(require(backend))
        check_outside(where)
        self.to_world, self.lens = (
            ns.TensorXf(from_numpy(v.ravel().astype(np.float32), ns.Float32), v.shape) for v in (poses, lens)
        )

    def _focal(self, where: str, count: int, fov: Any, focal: Any) -> np.ndarray:
        given = [v is not None for v in (fov, focal)]
        ensure(sum(given) == 1, f"{where}: {'fov or focal is needed' if not any(given) else 'give fov or focal'}.")
        if fov is None:
            return per_picture(where, "focal", focal, (count, 2), above=0)
        angle = per_picture(
            where, "fov", np.expand_dims(numbers(where, "fov", fov), -1), (count, 1), above=0, below=180
        )
        return np.repeat(self.width / 2 / np.tan(np.radians(angle) / 2), 2, axis=1)

    def _center(self, where: str, count: int, center: Any) -> np.ndarray:
        middle = self.width / 2, self.height / 2
        return per_picture(where, "center", middle if center is None else center, (count, 2))

    def __len__(self) -> int:
        """Number of pictures."""
        return self.to_world.shape[0]

    @property
    def pixels(self) -> int:
        """Number of pixels of all pictures."""
        return len(self) * self.width * self.height

    def picture(self, i: int) -> Any:
        """Numbers of all pixels of picture ``i``, a ``UInt32``; from the end if ``i`` is negative.

        Raises:
            ValueError, TypeError: there is no such picture.

        >>> o, d = cameras.rays(cameras.picture(0))
        """
        known = range(-len(self), len(self))
        check(is_int(i) and i in known, "Cameras.picture", "i", i, f"an int below {len(self)}")
        uint32, size = dr.uint32_array_t(type(self.to_world.array)), self.width * self.height
        return dr.arange(uint32, size) + kept(uint32(int(i) % len(self) * size))

    def draw(self, key: Key, samples: int | None = None) -> Any:
        r"""Numbers of random pixels of all pictures, a ``UInt32``, reproducible and independent of other draws.

        They are those of :func:`integers` in stream :math:`2^{31} - 3`.

        Args:
            key: :class:`Key`; without an index, ``samples`` says how many pixels there are.
            samples: number of pixels to draw, if the key has no index.

        Raises:
            ValueError, TypeError: arguments of other kinds or out of range.

        >>> pixels = cameras.draw(key, 1 << 12)
        >>> o, d = cameras.rays(pixels, cn.uniform(2, key, Float, 1 << 12))
        """
        where = "Cameras.draw"
        check_type(where, "key", key, Key, "a coopnet.Key")
        if key.index is None:
            samples = check_positive(where, "samples", samples)
        uint32 = dr.uint32_array_t(type(self.to_world.array))
        return integers(self.pixels, key, uint32, samples, stream=streams.PIXELS)

    def rays(self, pixels: Any = None, place: Any = 0.5) -> tuple[Any, Any]:
        """Origins and directions of the rays through ``pixels``, an ``Array3f`` each; directions have length 1.

        Args:
            pixels: their numbers, a ``UInt32``; all pixels if it is not given. Numbers of no pixel are taken for the
                last one.
            place: where in the pixel, a number for both axes or two, to the right and down, each a number or a
                ``Float``; 0 and 1 are its edges.

        Raises:
            ValueError, TypeError: arguments of other kinds, sizes or backends.

        >>> o, d = cameras.rays(cameras.picture(0))
        >>> seen = cn.render.ray_march(volume, o, d, 0.5, 3.5, steps=64)
        """
        where = "Cameras.rays"
        leaf = type(self.to_world.array)
        uint32, four = dr.uint32_array_t(leaf), kinds.vector_type(leaf, 4)
        if pixels is None:
            pixels = dr.arange(uint32, self.pixels)
        whole = isinstance(pixels, dr.ArrayBase) and dr.is_integral_v(pixels) and dr.depth_v(pixels) == 1
        check_type(where, "pixels", pixels, dr.ArrayBase if whole and not dr.is_tensor_v(pixels) else (), "a UInt32")
        check_backend(f"{where}: pixels is", pixels, leaf, "the cameras")
        u, v = (number(where, "place", p, leaf) for p in self._place(where, place))
        for part in (u, v):
            check_lanes(where, "place", part, dr.width(pixels), "pixels")
        pixel = dr.minimum(uint32(pixels), self.pixels - 1)
        row = pixel // self.width
        picture = row // self.height
        column, row = pixel - row * self.width, row - picture * self.height
        lens = dr.gather(four, self.lens.array, picture)
        x, y = (leaf(column) + u - lens[2]) / lens[0], (lens[3] - leaf(row) - v) / lens[1]
        axes = [dr.gather(four, self.to_world.array, 3 * picture + i) for i in range(3)]
        point = vector_type(leaf)
        return point(*(a[3] for a in axes)), dr.normalize(point(*(a[0] * x + a[1] * y - a[2] for a in axes)))

    @staticmethod
    def _place(where: str, place: Any) -> list:
        two = isinstance(place, (list, tuple)) or (isinstance(place, dr.ArrayBase) and dr.depth_v(place) == 2)
        parts = entries(where, "place", place) if two else [place, place]
        ensure(len(parts) == 2, f"{where}: place has {len(parts)} parts; a number or two are needed.")
        return parts


def look_at(origin: Sequence[float], target: Sequence[float], up: Sequence[float] = (0, 0, 1)) -> np.ndarray:
    """The pose of a camera that looks at a point, for :class:`Cameras`.

    Args:
        origin: where the camera is, three numbers.
        target: what is in the middle of the picture.
        up: what points up in the picture; any vector that does not point along the view.

    Returns:
        float64 array of shape ``(3, 4)``: where the camera's right, up and back point, and where it is.

    Raises:
        ValueError, TypeError: an argument is not three finite numbers, or the camera does not know where to look.

    >>> cn.render.look_at((0, -4, 0), (0, 0, 0)).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, -4.0], [0.0, 1.0, 0.0, 0.0]]
    """
    where, given = "look_at", {"origin": origin, "target": target, "up": up}
    o, t, u = (numbers(where, name, value) for name, value in given.items())
    for name, value in zip(given, (o, t, u), strict=True):
        ensure(value.shape == (3,), f"{where}: {name} has the shape {value.shape}; three numbers are needed.")
    back, up_length = o - t, np.linalg.norm(u)
    distance = np.linalg.norm(back)
    ensure(distance > 0, f"{where}: origin and target are the same point.")
    right = np.cross(u, back)
    ensure(
        np.linalg.norm(right) > 1e-6 * up_length * distance,
        f"{where}: up, {shown(up)}, is zero or points along the view; give another direction.",
    )
    right, back = right / np.linalg.norm(right), back / distance
    return np.stack([right, np.cross(back, right), back, o], axis=1) + 0.0  # no negative zeros


def numbers(where: str, name: str, value: Any) -> np.ndarray:
    """``value`` as an array of finite numbers."""
    try:
        array = np.asarray(value.numpy() if isinstance(value, dr.ArrayBase) else value)
    except Exception:  # rows of several lengths, or any object
        array = np.empty(0, object)
    check(array.dtype.kind in "iuf", where, name, value, "an array of numbers", TypeError)
    array = array.astype(np.float64)
    ensure(np.isfinite(array).all(), f"{where}: {name} has numbers that are not finite.")
    return array


def per_picture(
    where: str, name: str, value: Any, shape: tuple[int, int], above: float = -np.inf, below: float = np.inf
) -> np.ndarray:
    """``value``, given for all pictures or for each, in ``shape``."""
    array = numbers(where, name, value)
    fits = array.shape == shape or array.shape in ((), (1,), shape[1:])
    many = "a number, or one" if shape[1] == 1 else "a number, two, or two"
    check(fits, where, name, value, f"{many} for each of {shape[0]} pictures")
    inside = (array > above).all() and (array < below).all()
    check(inside, where, name, value, f"above {above:g}" + (f" and below {below:g}" if below < np.inf else ""))
    return np.broadcast_to(array, shape)
