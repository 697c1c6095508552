"""Streams of the generator: word 3 of its counters. Uses with different ones draw independent numbers from equal keys.

Dropouts have the streams from 0 on: a network's layers are numbered. (The frequencies of ``Fourier`` are drawn from
stream 0, too, under a seed of their own.)
"""

#: From here on: parameters.
PARAMETERS = 1 << 30
#: From here on: samples. :func:`coopnet.uniform` and its like add their argument ``stream``, or one of those below.
SAMPLES = 1 << 31
#: Which pixels of a picture are trained.
SELECTION = 1
#: Points that measure the largest density of a volume, and those that check it.
DENSITIES, DENSITY_CHECKS = (1 << 31) - 5, (1 << 31) - 4
#: Pixels of cameras.
PIXELS = (1 << 31) - 3
#: Points in the cells of occupancy grids.
CELLS = (1 << 31) - 2
#: Jitter of rays.
JITTER = (1 << 31) - 1

#: Entries of sparse projections. (The jitter of rays has the same one.)
SIGNS = 0xFFFFFFFF
#: Seeds of Mitsuba's samplers.
SAMPLERS = 0x5EED
