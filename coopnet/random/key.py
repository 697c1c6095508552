"""Keys, which identify random draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_backend, check_type, ensure, is_flat
from ..jit.kernel_parameters import kept, kernel_parameter
from ..jit.scopes import frozen, inside_call
from .counter_words import check_sizes, check_uint, halves

#: Bits of the unsigned types. Where a wider type is needed, a narrower one is accepted.
_UNSIGNED = {dr.VarType.UInt8: 8, dr.VarType.UInt16: 16, dr.VarType.UInt32: 32, dr.VarType.UInt64: 64}


class _Number(int):
    """An int of a key, and an object of its own. Of one small int, Python has one object for all uses. ``dr.freeze``
    compares an object only where it finds it first, so two keys would seem equal if their ints also occur elsewhere
    among the arguments, such as in a network's settings. Checked with Dr.Jit 1.5.0.
    """


@dataclass(eq=False)
class Key:
    """Identifies a random draw by its experiment (``seed``), its sample (``index``) and its ``step``.

    A key holds no state. The same key gives the same mask everywhere: on every backend, at every batch size, in every
    kernel, forward and backward. For new draws at another step, use :meth:`fold_in`. A key is a Dr.Jit PyTree and
    passes through ``dr.while_loop``, ``dr.if_stmt``, ``dr.switch`` and ``dr.freeze``. New values of ``seed`` or
    ``step`` do not compile new kernels. Pass them to functions of ``dr.freeze`` as Dr.Jit values (``UInt32(i)``),
    since Dr.Jit records a frozen function again for every new Python int.

    Args:
        seed: int in [0, 2^64) or a Dr.Jit ``UInt64`` of width 1; narrower unsigned types are widened.
        index: the identity of each sample (a pixel, ray or path number): a Dr.Jit ``UInt32`` (or ``UInt8``), a NumPy
            array of integers, or an int shared by all samples. ``None`` means lane numbers, ``arange(UInt32, width)``.
            Virtual calls (``dr.switch``, ``dr.dispatch``, methods of instance arrays) have no lane number: there
            ``None`` is an error, and an index must be passed.
        step: int in [0, 2^32) or a Dr.Jit ``UInt32`` (or ``UInt8``); a counter, such as the training step or bounce
            number.

    Raises:
        TypeError: a value that is not an integer of these kinds.
        ValueError: an int out of range, or ``index=None`` inside a virtual call.

    >>> key = cn.Key(seed=7, step=3)
    >>> pixels = cn.Key(7, index=UInt32([12, 13, 40]))
    """

    seed: Any
    index: Any = None
    step: Any = 0

    def __post_init__(self) -> None:
        self.seed = _part(self.seed, "seed", 64)
        self.step = _part(self.step, "step", 32)
        if self.index is not None:
            self.index = _part(self.index, "index", 32)
        parts = (self.seed, self.index, self.step)
        self.seed, self.index, self.step = (_Number(v) if isinstance(v, int) else v for v in parts)

    def fold_in(self, step: Any) -> Key:
        """The key of another step: same seed and samples, ``step`` replaced (int or ``UInt32``).

        Variables of a loop must keep their types: if the key is one of them, start with a ``UInt32`` step. Raises as
        :class:`Key`.

        >>> later = key.fold_in(4)
        """
        return Key(self.seed, self.index, step)

    def traced(self, uint32: type) -> Key:
        """This key with seed and step as Dr.Jit values of ``uint32``'s backend.

        Python ints become opaque values rather than literals, so that a new seed needs no new kernel. A key that is
        traced already is returned as it is. Networks trace their key once, so that all layers share the kernel's
        parameters.
        """
        uint64 = dr.uint64_array_t(uint32)
        if type(self.seed) is uint64 and type(self.step) is uint32 and type(self.index) in (uint32, type(None)):
            return self
        return Key(_traced(self.seed, uint64), _traced(self.index, uint32), _traced(self.step, uint32))

    def words(self, uint32: type, width: int, tensor: bool = False) -> tuple[Any, Any, tuple[Any, Any]]:
        """``(index, step, (seed_low, seed_high))`` for ``width`` samples, in the 32-bit type ``uint32``.

        The type is one of Dr.Jit or NumPy. Each part has one entry, or one for each sample. If ``width`` is 1, the key
        may be wider, except for NumPy arrays and with ``tensor``. A tensor has one seed.
        """
        on_host = uint32 is np.uint32
        if on_host:
            index = np.arange(width) if self.index is None else self.index
            seed, index, step = (
                np.atleast_1d(np.asarray(v.numpy() if isinstance(v, dr.ArrayBase) else v, tp))
                for v, tp in ((self.seed, np.uint64), (index, np.uint32), (self.step, np.uint32))
            )
        else:
            key = self.traced(uint32)
            seed, index, step = key.seed, key.index, key.step
            if index is None:
                ensure(not inside_call(uint32), _NO_LANES)
                index = dr.arange(uint32, width)
        # inside evaluated calls, which sort arguments by callee, a seed has an entry for each sample
        for name, value in (("seed", seed), ("index", index), ("step", step)):
            _check_entries(name, len(value), width, width > 1 or on_host or (tensor and name != "seed"))
        ensure(len(seed) == 1 or not tensor, f"Key: seed has {len(seed)} entries; one is needed for a tensor.")
        if width == 1 and not on_host:
            check_sizes([seed, index, step])
        return index, step, halves(seed, uint32)


_NO_LANES = (
    "Key: index is None inside a virtual call (dr.switch, dr.dispatch or a method call), where lanes have no number; "
    "pass the identity of each sample in: Key(seed, index=UInt32(...))."
)


def _check_entries(name: str, entries: int, width: int, exact: bool) -> None:
    if entries == 0 or (exact and entries not in (1, width)):
        raise ValueError(f"Key: {name} has {entries} entries, but the input has {width} samples.")


def check_samples(key: Key, width: int) -> None:
    """Raise the error of :meth:`Key.words` if a part of ``key`` does not fit ``width`` samples."""
    for name, value in (("seed", key.seed), ("index", key.index), ("step", key.step)):
        if isinstance(value, (dr.ArrayBase, np.ndarray)):
            _check_entries(name, len(value), width, width > 1)


def draws(key: Key | None) -> int:
    """How many samples have draws of their own by the traced ``key``; 1 if it leaves that open."""
    parts = () if key is None else (key.seed, key.index, key.step)
    return max((dr.width(v) for v in parts if v is not None), default=1)


def _part(value: Any, name: str, bits: int) -> Any:
    """``value``, a part of a key, as an int in [0, 2^bits) or an unsigned array of ``bits`` bits; raises for others."""
    if isinstance(value, dr.ArrayBase):
        flat = is_flat(value) and dr.is_jit_v(value)
        given = _UNSIGNED.get(dr.type_v(value), bits + 1) if flat else bits + 1
        if given > bits:
            needed = f"a UInt{bits} is needed: UInt{bits}({name})"
            raise TypeError(f"Key: {name} is a Dr.Jit {type(value).__name__}; {needed}.")
        return kept((dr.uint64_array_t if bits == 64 else dr.uint32_array_t)(value)(value))
    if isinstance(value, np.ndarray) and name == "index":
        kind = f"Key: index is a NumPy array of {value.dtype} with shape {value.shape}"
        ensure(value.ndim == 1 and value.dtype.kind in "iu", f"{kind}; 1D integers are needed.", TypeError)
        valid = value.size and int(value.min()) >= 0 and int(value.max()) < 1 << 32
        ensure(valid, "Key: a NumPy index must be non-empty with entries in [0, 2^32).")
        return value.astype(np.uint32)
    return check_uint("Key", name, value, bits, f" or a Dr.Jit UInt{bits}")


_NUMPY = (
    "Key: index is a NumPy array, which a function that is being frozen cannot read; make the key outside, with "
    "index=UInt32(index)."
)


def _traced(value: Any, tp: type) -> Any:
    if value is None or type(value) is tp:
        return value
    if isinstance(value, dr.ArrayBase):
        check_backend("Key: holds", value, tp)
        return tp(value)
    if isinstance(value, np.ndarray):
        ensure(not frozen(), _NUMPY)
        return tp(value)
    return kernel_parameter(tp, value)


def check_key(where: str, key: Any) -> None:
    """Raise ``TypeError`` unless ``key`` is a :class:`Key` or ``None``."""
    check_type(where, "key", key, Key | None, "a coopnet.Key or None")
