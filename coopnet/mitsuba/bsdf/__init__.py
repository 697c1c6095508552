"""A material as a network: what it is given, how it is sampled, and how it is learned from another.

====================  =================================================================
:mod:`.decoder`       the network, which reads a BSDF off a latent code
:mod:`.directions`    what it is told about two directions
:mod:`.latent`        the code: numbers, constant or varying over a surface
:mod:`.lobes`         analytic lobes that its samples come from
:mod:`.sampler`       their parameters: numbers, textures, or a network of code and direction
:mod:`.specular`      perfectly specular parts, beside the network
:mod:`.reflections`   samples of any BSDF, to learn from
:mod:`.fit`           learning
:mod:`.lobe_fit`      learning where to sample
:mod:`.files`         all of it in one file
====================  =================================================================
"""
