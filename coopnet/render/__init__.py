"""Loops around fields: tracing surfaces and marching through volumes, inside one kernel, with gradients.

=========================  ============================================
:mod:`.arguments`          what rays may be
:mod:`.parameters`         networks as inputs of a custom operation
surfaces
:mod:`.sphere_trace`       tracing them, with gradients
:mod:`.sphere_trace_loop`  the loop, without
:mod:`.surface`            signed distances, slopes and gradients
:mod:`.visibility`         soft visibility
volumes
:mod:`.ray_march`          radiance along rays
:mod:`.ray_march_mc`       how sure a field is of it
:mod:`.march_loop`         in one loop, differentiated by Dr.Jit
:mod:`.march_replay`       twice, the second time for gradients
:mod:`.march_wide`         all samples at once
:mod:`.rays`               where samples lie
:mod:`.compositing`        emission and absorption of samples in memory
:mod:`.radiance`           density and color of a field
:mod:`.occupancy`          cells that hold anything
=========================  ============================================
"""

from __future__ import annotations

from .occupancy import OccupancyGrid
from .ray_march import March, ray_march
from .ray_march_mc import MarchMoments, ray_march_mc
from .sphere_trace import SurfaceHit, sphere_trace
from .visibility import soft_visibility

__all__ = [
    "March", "MarchMoments", "OccupancyGrid", "SurfaceHit", "ray_march", "ray_march_mc", "soft_visibility",
    "sphere_trace",
]  # fmt: skip
