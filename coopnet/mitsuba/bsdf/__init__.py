"""A BSDF as a network: its inputs, how it is sampled, and how it is fitted to another BSDF.

====================  =================================================================
:mod:`.decoder`       the network: value of a latent code and two directions
:mod:`.directions`    features of two directions, its inputs
:mod:`.latent`        the code: numbers, constant or varying over a surface
:mod:`.lobes`         analytic lobes that directions are sampled from
:mod:`.sampler`       their parameters: numbers, textures, or a network of code and direction
:mod:`.specular`      perfectly specular parts, beside the network
:mod:`.reflections`   samples of any BSDF, as targets of a fit
:mod:`.fit`           fitting the network
:mod:`.lobe_fit`      fitting the lobes
:mod:`.files`         files of neural BSDFs
:mod:`.merl`          tables of measured BSDFs, as targets of a fit
:mod:`.rgl`           files of measured BSDFs that Mitsuba reads, checked
====================  =================================================================
"""
