"""The samples of rays: one in each bin of equal length."""

from __future__ import annotations

import copy
from typing import Any

import drjit as dr

from ..jit.kernel_parameters import kept
from ..random import streams
from ..random.key import Key, draws
from ..random.philox import philox4x32
from .arguments import Rays


class SampledRays:
    r"""Rays cut into ``steps`` bins of equal length, each with one sample.

    Sample :math:`i` lies at :math:`t_i = \mathrm{near} + (i + u_i)\,\Delta`, with :math:`\Delta` the length of a bin
    and :math:`u_i` its middle, 1/2, or number :math:`i` that :func:`coopnet.uniform` draws for the ray.

    Args:
        o, d: lists of three arrays, one entry per ray. near, dt: one entry per ray.
        alive: mask of the rays that have samples at all.
        words: ``(index, step, seed)`` of the key, arrays of the backend, or ``None``.
        jitter: are samples moved within their bins?
        masks: dropout masks for every ``"sample"``, for every ``"ray"``, or ``"off"``.
    """

    def __init__(
        self, o: list, d: list, near: Any, dt: Any, steps: int, alive: Any, words: Any, jitter: bool, masks: str
    ):
        self.o, self.d, self.near, self.dt, self.steps, self.alive = o, d, near, dt, steps, alive
        self.words, self.jitter, self.masks = words, jitter and words is not None, masks
        self.float32, self.uint32 = type(dt), dr.uint32_array_t(type(dt))
        #: The number of steps for kernels, which read it: another number compiles nothing.
        self.bins = kept(self.uint32(steps))

    @classmethod
    def of(
        cls, rays: Rays, near: Any, far: Any, steps: int, key: Key | None, jitter: bool, masks: str, active: Any
    ) -> tuple[SampledRays, Any]:
        """``rays``, with zeros for those that are not marched, and the mask of those that are."""
        near, far, alive = rays.number("near", near), rays.number("far", far), rays.mask(active)
        leaf, n = rays.leaf, rays.lanes
        if key is not None:
            key = key.traced(dr.uint32_array_t(leaf))
            n = draws(key) if n == 1 else n  # one ray, with as many masks as the key has entries
        parts = [*rays.o, *rays.d, near, far]
        parts = [v + dr.zeros(leaf, n) if dr.width(v) == 1 else v for v in parts]
        for v in parts:
            alive = alive & dr.isfinite(v)
        parts = [dr.select(alive, v, 0) for v in parts]
        o, d, (near, far) = parts[:3], parts[3:6], parts[6:]
        words = None
        if key is not None:
            index, step, _ = key.words(dr.uint32_array_t(leaf), n)
            words = index, step, key.seed
        dt = (far - near) * kept(leaf(1 / steps))
        return cls(o, d, near, dt, steps, alive & (far > near), words, jitter, masks), alive

    @property
    def geometry(self) -> list:
        """Components of origins and directions, near, and the lengths of bins."""
        return [*self.o, *self.d, self.near, self.dt]

    def moved(self, geometry: list) -> SampledRays:
        """The same rays with another :meth:`geometry`."""
        rays = copy.copy(self)
        rays.o, rays.d, (rays.near, rays.dt) = geometry[:3], geometry[3:6], geometry[6:]
        return rays

    def gather(self, ray: Any) -> SampledRays:
        """The rays with the numbers ``ray``, which may repeat."""

        def get(v: Any) -> Any:
            return dr.gather(type(v), v, ray) if dr.width(v) > 1 else v

        rays = self.moved([get(v) for v in self.geometry])
        rays.alive = get(self.alive)
        rays.words = None if self.words is None else tuple(get(w) for w in self.words)
        return rays

    def distance(self, i: Any) -> Any:
        """The distance :math:`t_i` of sample ``i``."""
        return dr.fma(self.float32(i) + self.offset(i), self.dt, self.near)

    def point(self, t: Any) -> list:
        """The points at distance ``t``."""
        return [dr.fma(d, t, o) for o, d in zip(self.o, self.d, strict=True)]

    def offset(self, i: Any) -> Any:
        """Where in its bin sample ``i`` lies, in [0, 1)."""
        if not self.jitter:
            return self.float32(0.5)
        index, step, seed = self.words
        halves = self.uint32(seed), self.uint32(seed >> 32)
        words = philox4x32((i >> 2, index, step, self.uint32(streams.SAMPLES + streams.JITTER)), halves)
        lane = i & 3
        word = dr.select(lane < 2, dr.select(lane == 0, words[0], words[1]), dr.select(lane == 2, words[2], words[3]))
        return self.float32(word >> 8) * 2**-24

    def key(self, i: Any) -> Key | None:
        """The key of the dropout masks of sample ``i``."""
        if self.words is None or self.masks == "off":
            return None
        index, step, seed = self.words
        return Key(seed, index, step if self.masks == "ray" else step * self.bins + i)
