"""A minute of measurements: one network by coopnet, by ``drjit.nn`` and, where it is installed, by PyTorch."""

from .compare import compare, format_comparison

__all__ = ["compare", "format_comparison"]
