"""The masks of evaluated loops and conditionals.

While Dr.Jit runs the body of a loop or conditional, it applies the mask of active lanes to every gather and scatter
whose number of entries is 1 or the loop's number of lanes, be they samples or the entries of a matrix. It does not
apply the mask to other sizes, such as samples that are padded to whole warps or in chunks. So code that adds up samples
first sets inactive ones to zero (:func:`present`), and then works :func:`unmasked`.

Relies on the mangled names of ``jit_var_mask_peek``, ``jit_var_mask_default``, ``jit_var_mask_push``,
``jit_var_mask_pop`` and ``jit_var_dec_ref_impl``. Checked with Dr.Jit 1.5.0. Without these functions, a mask is assumed
to exist at any time, and cannot be removed.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import drjit as dr

from .native.core import function
from .scopes import symbolic


def masked(tp: type) -> bool:
    """May Dr.Jit apply a mask to operations on the backend of the Dr.Jit type ``tp``?"""
    peek, release = function("_Z17jit_var_mask_peek10JitBackend"), function("_Z20jit_var_dec_ref_implj")
    if peek is None or release is None:
        return True
    peek.restype = ctypes.c_uint32
    index = peek(_backend(tp))
    if index:
        release(ctypes.c_uint32(index))
    return bool(index)


def active(tp: type, lanes: int) -> Any:
    """The mask of active lanes, with ``lanes`` entries, for the Dr.Jit type ``tp``."""
    uint32 = dr.uint32_array_t(tp)
    flags = dr.opaque(uint32, 0, lanes)
    # Dr.Jit applies the mask to this scatter; a gather in the order of lanes would be optimized away
    dr.scatter(flags, uint32(1), dr.arange(uint32, lanes), mode=dr.ReduceMode.Permute)
    return flags == 1


def present(values: Sequence[Any], lanes: int) -> list[Any]:
    """``values``, arrays of ``lanes`` entries or one, with zeros in lanes that have left an evaluated loop."""
    tp = type(values[0])
    if symbolic() or not masked(tp):
        return list(values)
    mask = active(tp, lanes)
    return [dr.select(mask, v, 0) for v in values]


@contextlib.contextmanager
def unmasked(tp: type) -> Iterator[None]:
    """A context in which all lanes of gathers and scatters are active: for arrays that have no entry per sample.

    In symbolic code it changes nothing.
    """
    make = function("_Z20jit_var_mask_default10JitBackendm")
    push, pop = function("_Z17jit_var_mask_push10JitBackendj"), function("_Z16jit_var_mask_pop10JitBackend")
    release = function("_Z20jit_var_dec_ref_implj")
    if symbolic() or None in (make, push, pop, release) or not masked(tp):
        yield
        return
    backend = _backend(tp)
    make.restype = ctypes.c_uint32
    index = ctypes.c_uint32(make(backend, ctypes.c_size_t(1)))
    push(backend, index)
    release(index)  # the stack has a reference of its own
    try:
        yield
    finally:
        pop(backend)


def _backend(tp: type) -> ctypes.c_int:
    return ctypes.c_int(int(dr.backend_v(tp).value))
