"""Fields as source code of other languages: ``export``.

==================  ==============================================
:mod:`.export`      the files, and what may be asked for
:mod:`.language`    the small language that fields are exported in
:mod:`.layers`      layers in it
:mod:`.encodings`   encodings in it
:mod:`.material`    reflections in it
:mod:`.drawn`       levels, parameters and members that keys draw
:mod:`.derivative`  forward derivatives of its functions
:mod:`.targets`     its printers, one for each language
:mod:`.page`        web pages
:mod:`.weights`     the file of weights
:mod:`.reserved`    names that a function cannot have
==================  ==============================================
"""

from .export import Exported, export
from .material import Reflection
from .page.document import View

__all__ = ["Exported", "Reflection", "View", "export"]
