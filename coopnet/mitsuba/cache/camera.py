"""Rays of a sensor at random places of its film, for training."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...random import streams
from ...random.counter_words import halves
from ...random.key import Key
from ...random.philox import philox4x32
from ...training import uniform


class Camera:
    """Draws ``samples`` rays of ``sensor`` at a time, all as a function of a key."""

    def __init__(self, sensor: Any, samples: int):
        self.sensor, self.samples = sensor, samples
        self.generator = mi.load_dict({"type": "independent"})

    def draw(self, key: Key, count: int) -> tuple[Any, Any, Any]:
        """Rays, a random integer below ``count`` for each of them, and a sampler for the rest of their paths."""
        x, y, number, when, u, v = uniform(6, key, mi.Float, self.samples)
        time = self.sensor.shutter_open() + when * self.sensor.shutter_open_time()
        ray, _ = self.sensor.sample_ray(time, 0.5, mi.Point2f(x, y), mi.Point2f(u, v))
        sampler = self.generator.clone()
        key = key.traced(mi.UInt32)
        seed, *_ = philox4x32((0, 0, key.step, streams.SAMPLERS), halves(key.seed, mi.UInt32))
        sampler.seed(seed, self.samples)
        return ray, dr.minimum(mi.UInt32(number * count), count - 1), sampler
