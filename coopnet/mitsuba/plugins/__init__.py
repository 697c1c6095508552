"""Classes that scenes name, as plugins of Mitsuba's.

========================  ==========================================================================
:mod:`.neural_bsdf`       ``neural_bsdf``, a material
:mod:`.neural_texture`    ``neural_texture``
:mod:`.neural_path`       ``neural_path``, an integrator
:mod:`.register`          Mitsuba's list of plugins
:mod:`.named_objects`     fields and decoders under names, which are all that scene descriptions hold
========================  ==========================================================================
"""
