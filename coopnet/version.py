"""The version of the package: the one place that says it, for wheels, checkpoints and ``coopnet info``."""

__version__ = "0.2.0.dev0"
