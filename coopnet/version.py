"""The version of the package, defined only here, for wheels, checkpoints and ``coopnet info``."""

__version__ = "0.2.0.dev0"
