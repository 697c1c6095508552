"""A field that is trained while a scene is rendered, and in which paths end.

========================  =======================================================
:mod:`.radiance_cache`    the public class
:mod:`.surface`           inputs of the field at a point on a surface
:mod:`.short_paths`       paths that end after a few bounces
:mod:`.camera`            rays that the paths of the training begin with
:mod:`.training`          training in frozen steps
:mod:`.integrator`        renders with the trained field
========================  =======================================================
"""
