"""Files: checkpoints, the description of a field inside them, and writing that never damages an existing file.

====================  =======================================
:mod:`.checkpoint`    fields in safetensors files
:mod:`.architecture`  a field as JSON, without its weights
:mod:`.amounts`       how much memory a field from a file would take
:mod:`.pickles`       pickles of fields
:mod:`.files`         writing that never damages an existing file
====================  =======================================
"""

from . import pickles  # noqa: F401 - how networks are pickled
from .architecture import construct, describe, register
from .checkpoint import Checkpoint, load, read, save
from .files import atomic_write

__all__ = ["Checkpoint", "atomic_write", "construct", "describe", "load", "read", "register", "save"]
