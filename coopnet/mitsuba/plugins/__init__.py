"""Plugins of Mitsuba: classes that scenes can name.

========================  ==========================================================================
:mod:`.neural_bsdf`       ``neural_bsdf``, a material
:mod:`.merl`              ``merl``, a measured material
:mod:`.neural_texture`    ``neural_texture``
:mod:`.neural_path`       ``neural_path``, an integrator
:mod:`.neural_volume`     ``neural_volume``
:mod:`.neural_phase`      ``neural_phase``, a phase function
:mod:`.neural_medium`     ``neural_medium``
:mod:`.neural_envmap`     ``neural_envmap``, an environment light
:mod:`.neural_volpath`    ``neural_volpath``, an integrator for media
:mod:`.path_replay`       the common base of both integrators
:mod:`.register`          Mitsuba's list of plugins
:mod:`.named_objects`     fields and decoders under names, which scene descriptions can hold
========================  ==========================================================================
"""
