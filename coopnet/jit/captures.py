"""Arrays that functions refer to but do not get as arguments.

Relies on results of ``state_fn`` of ``dr.freeze`` being inputs of the recording, and on new strings being part of its
key. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import drjit as dr

from .unpacked import traversable

#: Containers that are searched at every call, unless they are attributes of an object.
_CHEAP = (FunctionType, MethodType, functools.partial, list, tuple, dict)

#: Libraries whose functions are not searched for global variables; their closures and defaults may hold user arrays.
_LIBRARIES = ("coopnet", "drjit", "numpy")

#: By name of a library: functions that return further inputs for frozen functions that refer to its objects.
COMPANIONS: dict[str, Callable[[], list]] = {}


class Captures:
    """The Dr.Jit arrays that ``functions`` refer to, also in objects, for the ``state_fn`` of ``dr.freeze``.

    A frozen function must know all its inputs. They are looked up at every call, since a variable may have been
    assigned meanwhile. Only the first call searches every object; later calls skip objects without arrays (a plot, a
    file). The arrays' numbers of entries are inputs, too: the number of samples may follow from any of them.
    """

    def __init__(self, *functions: Callable | None):
        self.functions = functions
        self.barren: dict[int, Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> list:
        walk = _Walk(self.barren or {})
        walk.visit(*self.functions)
        if self.barren is None:
            self.barren = walk.barren
        return [*_companions(walk.found), *walk.found, text_key(*_facts(walk.found))]


def text_key(*values: Any) -> str:
    """``values`` as part of the key of a frozen function: a new string.

    Dr.Jit visits each Python object once. If the same ``bool`` or small ``int`` occurred earlier in the inputs, such as
    in a network's settings, it records only that it recurs, not its value.
    """
    return f"key {values!r}"


class _Walk:
    """A search of all objects that can be reached, except those in ``known``, a dictionary by ``id``."""

    def __init__(self, known: dict[int, Any]):
        self.found: list[Any] = []
        # values are kept, so that no new object gets the id of a deleted one
        self.seen, self.barren = dict(known), dict[int, Any]()

    def visit(self, *values: Any, numbers: bool = True) -> None:
        """Search ``values``; ``numbers`` in lists and dictionaries count as inputs, too."""
        for value in values:
            if id(value) in self.seen or isinstance(value, (type, ModuleType, str, bytes)):
                continue
            self.seen[id(value)] = value
            before = len(self.found)
            self.search(value, numbers)
            if len(self.found) == before and not (numbers and isinstance(value, _CHEAP)):
                self.barren[id(value)] = value

    def search(self, value: Any, numbers: bool) -> None:
        if traversable(value):
            self.found.append(value)
        elif isinstance(value, (list, tuple, dict)):
            if numbers:  # otherwise replays would use the numbers of the recording
                self.found.append(value)
            self.visit(*(value.values() if isinstance(value, dict) else value), numbers=numbers)
        elif isinstance(value, MethodType):
            self.visit(value.__func__, value.__self__, dict(getattr(value.__self__, "__dict__", {})))
        elif isinstance(value, functools.partial):
            self.visit(value.func, value.args, value.keywords)
        elif isinstance(value, FunctionType):
            self.visit(value.__defaults__, value.__kwdefaults__, getattr(value, "__wrapped__", None))
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # a name that has no value yet
                    self.visit(cell.cell_contents)
            if (value.__module__ or "").split(".")[0] not in _LIBRARIES:
                self.visit(*(value.__globals__.get(name) for name in _names(value.__code__)))
        else:
            self.visit(*getattr(value, "__dict__", {}).values(), numbers=False)
            if isinstance(inspect.getattr_static(type(value), "__call__", None), FunctionType):
                self.visit(value.__call__)


def _facts(value: Any) -> list[Any]:
    """The numbers of entries of all arrays in ``value``, and all numbers and strings, in a fixed order."""
    found: list[Any] = []
    waiting, seen = [value], dict[int, Any]()
    while waiting:  # a loop, since this is done before every call of a frozen function
        value = waiting.pop()
        parts = _parts(value.__class__)
        if parts == "entries":
            found.append(dr.width(value))
        elif parts == "itself":
            found.append(value)
        elif parts and id(value) not in seen:
            seen[id(value)] = value  # which is kept, so that no new object gets its id
            if parts == "values":
                waiting.extend(value.values())
            elif parts == "elements":
                waiting.extend(value)
            else:
                waiting.extend([getattr(value, name, None) for name in parts])
    return found


@functools.lru_cache(maxsize=1024)
def _parts(kind: Any) -> str | tuple[str, ...]:
    """What :func:`_facts` needs of an object of the type ``kind``: a word, or the names of attributes."""
    words = {
        "entries": dr.ArrayBase,
        "itself": (type(None), int, float, str),
        "values": dict,
        "elements": (list, tuple),
    }
    word = next((word for word, kinds in words.items() if issubclass(kind, kinds)), "")
    return word or tuple(getattr(kind, "DRJIT_STRUCT", None) or ())


def _companions(captured: list) -> list:
    if not COMPANIONS:
        return []
    kinds: set[Any] = {type(value) for value in captured}
    libraries = frozenset[str]().union(*map(_libraries, kinds))
    return [more for name, companions in COMPANIONS.items() if name in libraries for more in companions()]


@functools.lru_cache(maxsize=1024)
def _libraries(kind: type) -> frozenset[str]:
    """The libraries that define a type and its bases."""
    return frozenset(base.__module__.split(".")[0] for base in kind.__mro__)


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> frozenset[str]:
    """The names that the code of a function looks up, and that of functions inside it."""
    inside = (_names(inner) for inner in code.co_consts if isinstance(inner, CodeType))
    return frozenset(code.co_names).union(*inside)
