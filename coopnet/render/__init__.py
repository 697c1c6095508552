"""Loops around fields: tracing surfaces and marching through volumes, inside one kernel, with gradients.

=========================  ============================================
:mod:`.arguments`          checks of rays
:mod:`.parameters`         networks as inputs of a custom operation
cameras
:mod:`.cameras`            from pixels to rays
:mod:`.transforms`         cameras of photos, from files
surfaces
:mod:`.sphere_trace`       tracing them, with gradients
:mod:`.sphere_trace_loop`  the loop, without gradients
:mod:`.surface`            signed distances, slopes and gradients
:mod:`.visibility`         soft visibility
volumes
:mod:`.ray_march`          radiance along rays
:mod:`.ray_march_mc`       its mean and deviation over draws
:mod:`.march_loop`         marching in one loop, differentiated by Dr.Jit
:mod:`.march_replay`       marching twice, the second time for gradients
:mod:`.march_wide`         marching with all samples at once
:mod:`.rays`               the samples of rays
:mod:`.compositing`        emission and absorption of samples in memory
:mod:`.radiance`           density and color of a field
:mod:`.box`                where rays cross a box
:mod:`.cells`              a box of cells
:mod:`.occupancy`          which cells are not empty
:mod:`.visits`             how often rays have visited cells
=========================  ============================================
"""

from __future__ import annotations

from .box import box_interval
from .cameras import Cameras, look_at
from .occupancy import OccupancyGrid
from .ray_march import March, ray_march
from .ray_march_mc import MarchMoments, ray_march_mc
from .sphere_trace import SurfaceHit, sphere_trace
from .transforms import load_cameras
from .visibility import soft_visibility
from .visits import Visits

__all__ = [
    "Cameras", "March", "MarchMoments", "OccupancyGrid", "SurfaceHit", "Visits", "box_interval", "load_cameras",
    "look_at", "ray_march", "ray_march_mc", "soft_visibility", "sphere_trace",
]  # fmt: skip
