"""Other systems: tiny-cuda-nn's configurations and parameters, and fields as modules of PyTorch (``torch``).

===============  =============================================================
:mod:`.tcnn`     tiny-cuda-nn
:mod:`.export`   source code of other languages
:mod:`.torch`    modules of PyTorch
:mod:`.program`  a field as three functions of arrays in memory, for ``torch``
:mod:`.calls`    repeated calls of a module get the same masks, for ``torch``
===============  =============================================================
"""

import importlib


def __getattr__(name: str) -> object:
    if name == "torch":  # needs PyTorch, which takes seconds to import
        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
