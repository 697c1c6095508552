"""Files: checkpoints, the description of a field inside them, and writing without ever losing what was there."""

from . import pickles  # noqa: F401 - how networks are pickled
from .architecture import construct, describe, register
from .checkpoint import Checkpoint, load, read, save
from .files import atomic_write

__all__ = ["Checkpoint", "atomic_write", "construct", "describe", "load", "read", "register", "save"]
