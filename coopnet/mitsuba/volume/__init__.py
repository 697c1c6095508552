"""Fields as media: their place in the world, their largest density, and paths through them.

=====================  ======================================================
:mod:`.placed_field`   the box of a field, in the world
:mod:`.majorant`       the largest density, measured or stated
:mod:`.scene_media`    the media of a scene, along rays and at points
:mod:`.loop`           paths through media that scatter, absorb and emit
=====================  ======================================================
"""
