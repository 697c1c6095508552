"""Languages that fields are exported to, by name.

===============  ============================
:mod:`.printer`  the base of printers
:mod:`.c`        C99
:mod:`.shaders`  GLSL, WGSL and Slang
:mod:`.numpy`    NumPy
===============  ============================
"""

from .c import C
from .numpy import NumPy
from .printer import Printer, Listing
from .shaders import GLSL, WGSL, Slang, SlangCoopVec

TARGETS: dict[str, type[Printer]] = {
    "c": C,
    "glsl": GLSL,
    "wgsl": WGSL,
    "slang": Slang,
    "slang-coopvec": SlangCoopVec,
    "numpy": NumPy,
}

__all__ = ["TARGETS", "Printer", "Listing"]
