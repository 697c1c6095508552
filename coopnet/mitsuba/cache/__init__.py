"""The radiance cache: a field that learns the light of a scene, so that paths can end early.

========================  =======================================================
:mod:`.radiance_cache`    the public class
:mod:`.surface`           inputs of the field at a point on a surface
:mod:`.short_paths`       paths that end after a few bounces
:mod:`.camera`            camera rays from which training paths start
:mod:`.training`          training in frozen steps
:mod:`.integrator`        renders with the trained field
========================  =======================================================
"""
