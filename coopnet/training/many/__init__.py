"""Training many fields of one architecture."""

from .fit import fit_many

__all__ = ["fit_many"]
