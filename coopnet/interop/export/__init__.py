"""Fields as source code of other languages: ``export``.

==================  =============================================
:mod:`.export`      the function, its arguments and files
:mod:`.language`    the intermediate language
:mod:`.layers`      layers in that language
:mod:`.encodings`   encodings in it
:mod:`.material`    reflections in it
:mod:`.drawn`       levels, parameters and members drawn by keys
:mod:`.derivative`  forward derivatives of its functions
:mod:`.targets`     printers for C, shaders and NumPy
:mod:`.page`        web pages
:mod:`.weights`     the file of weights
:mod:`.reserved`    names that a function cannot have
==================  =============================================
"""

from .export import Exported, export
from .material import Reflection
from .page.document import View

__all__ = ["Exported", "Reflection", "View", "export"]
