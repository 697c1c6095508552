"""A field that is trained while a scene is rendered, and in which paths end.

========================  =======================================================
:mod:`.radiance_cache`    the public class
:mod:`.surface`           what the field is told of a point on a surface
:mod:`.short_paths`       paths that end after a few bounces
:mod:`.camera`            where those of the training begin
:mod:`.training`          frozen steps of the training
:mod:`.integrator`        pictures by the trained field
========================  =======================================================
"""
