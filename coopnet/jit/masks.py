"""The masks of evaluated loops and conditionals.

While Dr.Jit runs the body of one, it applies the mask of active lanes to every gather and scatter that has as many
entries as the loop has lanes, or a single one. It does not matter whether these are samples or the entries of a matrix.
The mask is not applied to others, such as samples that are padded to whole warps, sorted, or in chunks. So code that
adds up samples takes the :func:`present` ones of its inputs, and then works :func:`unmasked`.

Relies on the mangled names of ``jit_var_mask_peek``, ``jit_var_mask_default``, ``jit_var_mask_push``,
``jit_var_mask_pop`` and ``jit_var_dec_ref_impl``. Checked with Dr.Jit 1.5.0; without them, there may be a mask at any
time, and it stays.
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
    """Which of as many ``lanes`` are active, a mask for the Dr.Jit type ``tp``."""
    uint32 = dr.uint32_array_t(tp)
    flags = dr.opaque(uint32, 0, lanes)
    # a scatter, to which the mask is applied; gathers in the order of lanes are optimized away
    dr.scatter(flags, uint32(1), dr.arange(uint32, lanes), mode=dr.ReduceMode.Permute)
    return flags == 1


def present(values: Sequence[Any], lanes: int) -> list[Any]:
    """``values``, arrays of as many ``lanes`` or of one, with zeros in those that have left an evaluated loop."""
    tp = type(values[0])
    if symbolic() or not masked(tp):
        return list(values)
    mask = active(tp, lanes)
    return [dr.select(mask, v, 0) for v in values]


@contextlib.contextmanager
def unmasked(tp: type) -> Iterator[None]:
    """A context in which all lanes of gathers and scatters are active: for arrays that have no entry per sample.

    In symbolic code, masks are those of the surrounding code, and it changes nothing.
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
