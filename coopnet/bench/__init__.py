"""A minute of measurements: one network in coopnet, in ``drjit.nn`` and, if it is installed, in PyTorch.

===============  ============================================
:mod:`.problem`  what all compute
:mod:`.peers`    who is measured
:mod:`.worker`   the process of one of them
:mod:`.compare`  who is measured when, and what is said of it
===============  ============================================
"""

from .compare import compare, format_comparison

__all__ = ["compare", "format_comparison"]
