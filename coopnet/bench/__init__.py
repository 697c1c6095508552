"""A minute of measurements: one network in coopnet, in ``drjit.nn`` and, if it is installed, in PyTorch.

===============  ============================================
:mod:`.problem`  the network that all compute
:mod:`.peers`    the libraries that are measured
:mod:`.worker`   the process of one library
:mod:`.compare`  the order of measurements, and the report
===============  ============================================
"""

from .compare import compare, format_comparison

__all__ = ["compare", "format_comparison"]
