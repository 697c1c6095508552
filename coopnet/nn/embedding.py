"""Tables of latent codes."""

from __future__ import annotations

import copy
from typing import Any

import drjit as dr
import numpy as np

from ..checks import check_choice, check_flag, check_number, check_positive, check_same_backend, check_text, ensure
from ..checks.sizes import check_entries, check_features
from ..engine import stacked
from ..engine.modes import is_deterministic
from ..jit import kinds
from ..jit.scopes import frozen, symbolic
from ..jit.unpacked import Unpacked
from ..kernels.lookup import Table, lookup
from ..random.key import Key
from .arguments import fields
from .linear import uniform
from .module import Module
from .tangents import check_bundle, rebuilt

_OUTPUTS = {"float16": dr.float16_array_t, "float32": dr.float32_array_t, "float64": dr.float64_array_t}


class Embedding(Module):
    r"""Table of trained codes, one row per object, texel or word, looked up by id: :math:`y = T_{\mathrm{id}}`.

    Rows are read with packet gathers in the table's precision. Only rows that are read are converted to ``output``. The
    gradient of a row is the sum over all samples that looked it up. It is computed in single precision and rounded once
    to the table's precision; rows that no sample looked up get exactly zero. Outside symbolic loops, conditionals and
    calls, ids are sorted and sums are taken in the order of the samples, so they are reproducible to the bit.

    The table is not packed with the weights of a network: it is the entry ``"data"`` of the layer's mapping, a tensor
    ``(count, width)``, which starts uniform in :math:`\pm` ``init_scale``.

    Args:
        count: number of rows.
        width: features in a row.
        init_scale: bound of the initial values.
        precision: of the table: ``"half"``, ``"single"``, or ``"auto"`` for that of its network.
        output: type of the features: ``"float32"``, ``"float16"``, ``"float64"``, or ``"table"`` for the table's own.
        out_of_range: result for an id outside [0, count), if that is not an error: ``"zero"`` for zeros without a
            gradient, or ``"clamp"`` for the nearest row.
        check: raise ``ValueError`` for ids out of range; this evaluates the ids and waits for the result. It is not
            possible in symbolic loops, conditionals and calls, and in frozen functions. There ``out_of_range`` decides,
            as with ``check=False``.
        deterministic: if ``False``, gradients are summed with atomics. That is faster for small tables, but not
            reproducible, except within :func:`coopnet.deterministic`.
        prefix: prepended to the name ``"data"``, so that tables that share an optimizer have different names.

    Calling it takes ids, one per sample: a Dr.Jit array of any integer type, a tensor ``(samples,)`` or
    ``(1, samples)``, a list of one array, a NumPy array, or an int. It returns ``width`` features as a nested array, or
    as a tensor or list for those inputs. Whole numbers of a floating point type are ids, too (exact up to
    :math:`2^{24}`), since a :class:`NeuralField` passes its coordinates in single precision. So the layer can be the
    encoding of a field, or part of a :class:`Composite`. The field's bounds map ids like coordinates: give those of the
    id as 0 and 1, which leaves it as it is, as in ``bounds=([0, -2, -2], [1, 2, 2])``.

    Raises:
        ValueError: ids out of range or not whole (see ``check``), more than one per sample, a layer without table.
        TypeError: ids of another type or backend.
        RuntimeError: gradients within :func:`coopnet.deterministic` in symbolic loops, conditionals and calls;
            gradients of half-precision tables in calls, or by ``dr.backward`` inside a symbolic loop, where they would
            be summed in half precision.

    A field of an object's id and two coordinates, then a field whose caller looks up the codes by integers of any size:

    >>> encoding = cn.Composite([cn.Embedding(1000, 8), cn.HashGrid(2)])
    >>> rgb = cn.NeuralField(encoding, cn.MLP(out_features=3)).build()([Float(ids), *uv])

    >>> codes = cn.Embedding(1000, 8).alloc(TensorXf)
    >>> field = cn.NeuralField(None, cn.MLP(8 + 2, 3)).build("llvm")
    >>> rgb = field([*codes(ids), *uv])
    >>> optimizer = drjit.opt.Adam(lr=1e-2, params=field)
    >>> optimizer.update(codes)
    """

    in_features = 1  #: the id

    def __init__(
        self, count: int = 1, width: int = 1, init_scale: float = 1e-2, precision: str = "auto",
        output: str = "float32", out_of_range: str = "zero", check: bool = True, deterministic: bool = True,
        prefix: str = "",
    ):  # fmt: skip
        self.count = check_positive("Embedding", "count", count)
        self._width = check_positive("Embedding", "width", width)
        check_features("Embedding", "width", self._width)
        check_entries("Embedding", "entries", (self.count, self._width), on_host=False)
        self.init_scale = check_number("Embedding", "init_scale", init_scale, 0)
        self.precision = check_choice("Embedding", "precision", precision, ("auto", "half", "single"))
        self.output = check_choice("Embedding", "output", output, (*_OUTPUTS, "table"))
        self.out_of_range = check_choice("Embedding", "out_of_range", out_of_range, ("zero", "clamp"))
        self.check = check_flag("Embedding", "check", check)
        self.deterministic = check_flag("Embedding", "deterministic", deterministic)
        self.prefix = check_text("Embedding", "prefix", prefix)
        self.table = Unpacked()

    DRJIT_STRUCT = fields(__init__, width=None, _width=int, table=Unpacked)  # width is a method of all encodings

    def width(self, size: int) -> int:
        """Features in a row; ``size`` is 1, the id."""
        return self._width

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        if self.table.value is None:
            raise ValueError("Embedding: the layer has no table yet; call net = net.alloc(dtype) first.")
        data = self.table.value.data
        table_type = dr.array_t(data)
        index, active = self._rows(_ids(x, table_type), dr.uint32_array_t(table_type))
        if (stack := stacked()) is not None:
            whole = stack.of(data.array)
            data, index = type(data)(whole, (stack.count * self.count, self._width)), index + stack.which * self.count
        leaf = table_type if self.output == "table" else _OUTPUTS[self.output](table_type)
        if is_deterministic() and symbolic() and dr.grad_enabled(data):
            problem = "the gradient of an embedding inside a symbolic loop or call accumulates with atomics"
            hint = "look rows up outside, or run the loop in evaluated mode"
            raise RuntimeError(f"deterministic: {problem}, in no fixed order; {hint}.")
        features = lookup(data, index, active, leaf, self.deterministic or is_deterministic())
        return features if isinstance(x, tuple) else kinds.contained(features, x)

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        """Rows jump from one id to the next: the derivative with respect to the id is zero."""
        check_bundle(self, x, tangents, arrays=True)
        y = self(x, key)
        zeros = [dr.zeros(type(v), dr.width(v)) for v in y]
        return y, [rebuilt(list(zeros), x) for _ in tangents]

    def _rows(self, ids: Any, uint32: type) -> tuple[Any, Any]:
        """``(index, active)``: rows as ``UInt32``, and the mask of those to read."""
        given, whole = ids, True
        if dr.is_float_v(ids):
            rounded = dr.round(dr.float32_array_t(uint32)(ids) if dr.is_half_v(ids) else ids)
            whole = rounded == ids
            # infinities and NaN don't convert
            nearest = dr.select(rounded > 0, dr.minimum(rounded, 2**33), -1)
            ids = dr.int64_array_t(uint32)(dr.select(rounded == 0, 0, nearest))
        elif dr.itemsize_v(ids) < 4:
            ids = dr.int32_array_t(uint32)(ids)  # these types may be too narrow for `count`
        negative = ids < 0 if dr.is_signed_v(ids) else dr.mask_t(ids)(False)
        if dr.is_signed_v(ids):
            ids = (dr.uint64_array_t if dr.itemsize_v(ids) == 8 else dr.uint32_array_t)(uint32)(ids)
        active = (ids < self.count) & ~negative
        if self.check and not symbolic() and not frozen():
            dr.schedule(given)
            if not dr.all(active & whole):
                self._raise_out_of_range(given, bool(dr.all(whole)))
            return uint32(ids), dr.mask_t(uint32)(True)
        index = uint32(dr.select(active, ids, 0))
        if self.out_of_range == "clamp":
            return dr.select(active | negative, index, self.count - 1), dr.mask_t(uint32)(True)
        return index, dr.mask_t(uint32)(active)

    def _raise_out_of_range(self, ids: Any, whole: bool) -> None:
        bounds = "Bounds of a field map ids, too; bounds of 0 and 1 for this coordinate leave them as they are"
        if not whole:
            numbers = dr.detach(ids).numpy()
            problem = f"{numbers[numbers != np.rint(numbers)][0]} is among them"
            raise ValueError(f"Embedding: ids of a floating point type must be whole numbers; {problem}. {bounds}.")
        name, mapped = type(ids).__name__, f"{bounds}. " if dr.is_float_v(ids) else ""
        if dr.itemsize_v(ids) < 4:
            ids = dr.int32_array_t(type(ids))(ids)
        given = f"ids ({name}) reach from {dr.min(ids)[0]} to {dr.max(ids)[0]}; they must lie in [0, {self.count})"
        hint = "To accept others, give check=False with out_of_range='clamp' or 'zero'"
        raise ValueError(f"Embedding: {given}. {mapped}{hint}.")

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Embedding, int]:  # type: ignore[override]
        ensure(size in (-1, 1), f"Embedding: the input has {size} features, but the layer takes 1, the id.")
        layer = copy.copy(self)
        leaf = dr.array_t(dtype)
        if self.precision != "auto":
            leaf = dr.float16_array_t(leaf) if self.precision == "half" else dr.float32_array_t(leaf)
        on_host = dr.backend_v(leaf) == dr.JitBackend.LLVM
        check_entries("Embedding", "entries", (self.count, self._width), dr.itemsize_v(leaf), on_host)
        values = leaf(uniform(dr.float32_array_t(leaf), self.count * self._width, self.init_scale, rng))
        layer.table = Unpacked(Table(dr.tensor_t(leaf)(values, (self.count, self._width))))
        return layer, self._width


def _ids(x: Any, own: type) -> Any:
    """The ids in ``x`` as one 1D array on the backend of ``own``, in their own type."""
    if isinstance(x, (int, np.integer, np.ndarray)) and not isinstance(x, bool):
        return _from_numpy(np.asarray(x), own)
    if isinstance(x, dr.ArrayBase) and dr.is_tensor_v(x) and x.ndim == 1:
        x = x.array
    kind, leaf = kinds.kind(x, "Embedding")
    features = kinds.features(x, kind)
    ensure(features == 1, f"Embedding: the input has {features} features; one id per sample is needed.")
    numbers = (dr.is_integral_v(leaf) or dr.is_float_v(leaf)) and not dr.is_mask_v(leaf)
    ensure(numbers, f"Embedding: ids are {leaf.__module__}.{leaf.__name__}; integers are needed.", TypeError)
    check_same_backend("Embedding: the ids live", leaf, " and the table", own)
    return dr.detach(x.array if kind == kinds.TENSOR else kinds.components(x)[0])


def _from_numpy(x: np.ndarray, own: type) -> Any:
    valid, given = x.dtype.kind in "iu" and x.ndim <= 1 and x.size, f"a NumPy array of {x.dtype} and shape {x.shape}"
    ensure(valid, f"Embedding: got {given}; a 1D array of integers is needed.", TypeError)
    wide, dtype = (dr.uint64_array_t, np.uint64) if x.dtype.kind == "u" else (dr.int64_array_t, np.int64)
    return wide(own)(np.atleast_1d(x).astype(dtype))
