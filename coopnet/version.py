"""The version of the package, which checkpoints state."""

__version__ = "0.1.0"
