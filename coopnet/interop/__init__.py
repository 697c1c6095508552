"""Other systems' formats: the JSON configurations of tiny-cuda-nn, and its parameters."""

from . import tcnn_parameters  # noqa: F401  # gives fields its methods
