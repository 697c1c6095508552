"""Numbers in memory that are the same for all lanes, read by kernels on the CPU with one scalar load each.

Alternatives are slower: arrays of one entry need a kernel parameter for each number, and ``dr.gather`` reads an entry
per lane.

Relies on the mangled names of ``jit_coop_vec_load``, ``jit_coop_vec_unpack`` and ``jit_var_dec_ref_impl``, and on
``dr.detail.update_indices``. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import ctypes
from typing import Any

import drjit as dr

from .native.core import function

_LOAD, _UNPACK, _RELEASE = "_Z17jit_coop_vec_loadjjj", "_Z19jit_coop_vec_unpackjjPj", "_Z20jit_var_dec_ref_implj"


def available() -> bool:
    """Can :func:`uniform` be called?"""
    return None not in map(function, (_LOAD, _UNPACK, _RELEASE))


def uniform(buffer: Any, start: int, count: int) -> list[Any]:
    """``count`` entries of the evaluated ``buffer``, from ``start`` on, for a kernel on the CPU."""
    load, unpack, release = map(function, (_LOAD, _UNPACK, _RELEASE))
    vector = ctypes.c_uint32(load(*map(ctypes.c_uint32, (dr.detach(buffer).index, start, count))))
    indices = (ctypes.c_uint32 * count)()
    unpack(vector, ctypes.c_uint32(count), indices)
    held = dr.detail.IndexVector()
    for index in indices:
        held.append(index)
    result: list[Any] = dr.detail.update_indices([type(buffer)(0)] * count, held)  # type: ignore[type-var]
    for index in (vector.value, *indices):
        release(ctypes.c_uint32(index))
    return result
