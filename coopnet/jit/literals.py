"""Literals among the gradients, tangents and inputs that become cooperative vectors.

Dr.Jit keeps a number that is the same in every lane, such as the 1 of ``dr.backward(y)``, as a literal. A product of a
vector of ones with a literal vector makes a wide copy of the latter, and so does a sum with zeros. For such a copy the
LLVM backend ends the process (in ``llvm_coop_vec.cpp``, the format of ``Bitcast`` has ``$V_u`` for ``$V_$u``). Computed
arrays do not have this problem. So literals are replaced by a ``dr.select`` under a condition that never holds.

Relies on Dr.Jit not simplifying that condition, and on the derivative of ``dr.select`` being a selection. Checked
with Dr.Jit 1.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn

#: The bits of a NaN that processors do not produce.
_NAN = 0xFFC0FE01


def never(value: Any) -> Any:
    """A mask that is false in all lanes. The compiler does not know this, unless ``value`` is a constant."""
    single = dr.float32_array_t(type(value))
    return dr.reinterpret_array(dr.uint32_array_t(single), single(dr.detach(value))) == _NAN


def computed(values: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """``values`` as computed arrays, with computed gradients and tangents, even if they are literals.

    ``known`` are arrays with an entry per sample; one of them that is no constant makes the condition.
    """
    other = next((v for v in (*known, *values) if not is_literal(v)), None)
    mask = dr.opaque(dr.mask_t(values[0]), False) if other is None else never(other)
    return [dr.select(mask, 0, v) for v in values]


def vector(parts: Sequence[Any], known: Sequence[Any]) -> drnn.CoopVec:
    """The vector of ``parts``. On LLVM, one of them is made :func:`computed` if all are literals."""
    parts = list(parts)
    if dr.backend_v(parts[0]) == dr.JitBackend.LLVM and all(map(is_literal, parts)):
        parts[:1] = computed(parts[:1], known)
    return drnn.CoopVec(parts)


def varying(bundle: Sequence[Any], memory: Any = None) -> list[Any]:
    """``bundle``, a value and its tangents. On LLVM, no vector of the result has only literals.

    A number in ``memory``, an evaluated array, makes the condition if all of the first vector are literals. Another
    array, made in a virtual call of a function that is being frozen, would be freed before the function is replayed.
    """
    if dr.backend_v(bundle[0].type) != dr.JitBackend.LLVM or not any(all(map(is_literal, v)) for v in bundle):
        return list(bundle)
    known = list(bundle[0])
    if memory is not None and all(map(is_literal, known)):
        known.append(dr.gather(type(memory), dr.detach(memory), dr.uint32_array_t(type(memory))(0)))
    return [vector(v, known) if all(map(is_literal, v)) else v for v in bundle]


def is_literal(value: Any) -> bool:
    """Is the array a literal, the same number in every lane?"""
    return dr.detach(value).state == dr.VarState.Literal


def is_zero(value: Any) -> bool:
    """Is the array a literal 0?"""
    return is_literal(value) and dr.detach(value)[0] == 0
