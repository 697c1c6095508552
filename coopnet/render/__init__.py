"""Loops around fields: tracing surfaces and marching through volumes, inside one kernel, with gradients."""

from __future__ import annotations

from .occupancy import OccupancyGrid
from .ray_march import March, ray_march
from .sphere_trace import SurfaceHit, sphere_trace
from .visibility import soft_visibility

__all__ = ["March", "OccupancyGrid", "SurfaceHit", "ray_march", "soft_visibility", "sphere_trace"]
