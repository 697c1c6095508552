"""tiny-cuda-nn: its JSON configurations, and the parameters of its models."""

from . import parameters  # noqa: F401  # gives fields their methods
from .configuration import Configuration, from_config

__all__ = ["Configuration", "from_config"]
