"""Fields in safetensors files.

The weights are plain row-major matrices, named by their path in the field (``network.layers.0.weights``), in the
precision of the field. The header holds the architecture as JSON under ``coopnet``, the versions of the programs that
wrote the file under ``versions``, and the caller's own metadata under ``user``. The names of other tensors, such as the
state of an optimizer, begin with ``train.``.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import drjit as dr
import numpy as np

from ..checks import check_type, ensure, shown
from ..field import NeuralField, check_built, storage
from ..jit.scopes import check_outside
from ..nn.parameters import NUMPY_TYPES, listed, parameters
from ..version import __version__
from .amounts import check_amounts
from .architecture import check_format, construct, describe
from .files import atomic_write, file_name, naming, regular, writable

TRAIN = "train."  #: prefix of names of tensors that are not parameters of the field

_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST = 100_000_000  #: bytes of a header; the format's own limit


class Checkpoint(NamedTuple):
    """Contents of a file: architecture, metadata of the caller, and tensors by name.

    >>> cn.save("field.safetensors", field, metadata={"scene": "kitchen"})
    >>> cn.io.read("field.safetensors").metadata
    {'scene': 'kitchen'}
    """

    architecture: dict[str, Any]
    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray]


def save(
    path: str | os.PathLike[str],
    field: NeuralField,
    *,
    tensors: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write ``field`` to the safetensors file ``path``, replacing it only once the new file is complete.

    Args:
        path: usually ``"name.safetensors"``.
        field: a built :class:`NeuralField`.
        tensors: further NumPy arrays to store, such as training state. :func:`load` ignores them, and :func:`read`
            returns them with ``"train."`` before their name.
        metadata: anything JSON can hold, by name.

    Raises:
        TypeError: arguments of other types, or a layer that is not known (see :func:`coopnet.io.register`).
        ValueError: the field is not built, or has something that JSON cannot hold; ``path`` is not a possible name of a
            file, or exists and is not a regular file.
        OSError: the file cannot be written; a previous one is left as it was.
        RuntimeError: called while Dr.Jit records a frozen function or a loop.
        ImportError: the package safetensors is missing or older than 0.8.

    >>> cn.save("field.safetensors", field, metadata={"scene": "kitchen"})
    """
    header = prepare(path, field, metadata)
    check_type("save", "tensors", tensors, (Mapping, type(None)), "a mapping from names to arrays")
    contents = {p.name: p.numpy("save") for p in parameters(field)}
    for name, value in (tensors or {}).items():
        contents[f"{TRAIN}{name}"] = _training_array(name, value)
    # the widest types first, so that all are aligned
    contents = dict(sorted(contents.items(), key=lambda item: (-item[1].itemsize, item[0])))
    opening = _opening(contents, header, path)

    # Not written by the package safetensors, which uses a temporary file of its own. If the process is killed, that
    # file stays behind, and no later writer would remove it.
    def write(temporary: Path) -> None:
        with naming(path), open(temporary, "r+b") as file:
            file.write(opening)
            for array in contents.values():
                file.write(array.data)

    atomic_write(path, write)


def prepare(path: Any, field: NeuralField, metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """The header that :func:`save` writes. Call it before a long training to find errors of :func:`save` early."""
    require_safetensors()  # without the package, the file could not be read back
    directory = writable(path, "save").parent
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "The directory is not writable", os.fspath(path))
    check_built("save", field)
    check_outside("save")
    return {
        "coopnet": json.dumps(describe(field), allow_nan=False),
        "versions": json.dumps({"coopnet": __version__, "drjit": dr.__version__}),
        "user": _user_metadata({} if metadata is None else metadata),
    }


def load(path: str | os.PathLike[str], backend: Any = "auto", precision: str = "auto") -> NeuralField:
    """Build the field that :func:`save` wrote, on any backend and in any precision.

    Args:
        path: the file. It can come from anywhere: nothing in it is executed.
        backend, precision: as in :meth:`NeuralField.build`.

    Raises:
        TypeError: ``path`` is neither string nor path.
        ValueError: the file is truncated, foreign, of a newer format, no regular file, or its tensors don't fit its
            architecture; a weight is too large for half precision; backend or precision are unknown.
        OSError: the file cannot be read.
        BackendError: no such backend here.
        ImportError: the package safetensors is missing or older than 0.8.

    >>> field = cn.load("field.safetensors", backend="llvm", precision="half")
    """
    check_outside("load")
    dtype, precision = storage(backend, precision, "load")
    architecture, _, tensors = read_file(path, "load", training=False)
    try:
        field = construct(architecture)
        check_amounts(field, sum(value.size for value in tensors.values()))
        # initial values cost nothing: they are replaced before pack() evaluates anything
        field = field.allocate(dtype, precision)
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        raise _bad("load", path, str(error)) from None
    expected = {p.name: p for p in parameters(field)}
    for names, what in ((expected.keys() - tensors, "lacks"), (tensors.keys() - expected, "has the unknown")):
        wrong = f"the file {what} {listed(sorted(names))}"
        _ensure(not names, "load", path, f"{wrong}; its tensors don't belong to its architecture.")
    for p in expected.values():
        value = tensors.pop(p.name)  # removed, so that its memory is freed once it is on the device
        valid = value.shape in (p.shape, (*p.shape, 1))  # a packed vector is a column
        _ensure(valid, "load", path, f"{p.name} has shape {value.shape}, but {p.shape} is needed.")
        known = value.dtype in NUMPY_TYPES.values()
        _ensure(known, "load", path, f"{p.name} holds {value.dtype}; float16, float32 or float64 is needed.")
        p.fill(value.reshape(p.shape), f"load: {file_name(path, 'load')!r}")
    return field.pack()


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """The architecture, metadata and all tensors of a file, as dictionaries; raises as :func:`load`.

    >>> weights = cn.io.read("field.safetensors").tensors["network.layers.0.weights"]
    """
    return read_file(path, "read", training=True)


def part_of(checkpoint: Checkpoint, name: str, described: Any, build: Callable[[NeuralField], NeuralField]) -> Any:
    """The part ``name`` of a file with several parts: the field that ``described`` describes, or ``described`` itself.

    The names of the field's tensors begin with ``name``; ``build`` allocates it. Raises ``ValueError`` if they do not
    fit.
    """
    if not isinstance(described, dict):
        return described
    stored = {at: value for at, value in checkpoint.tensors.items() if at.startswith(f"{TRAIN}{name}.")}
    field = construct(described)
    check_amounts(field, sum(value.size for value in stored.values()))  # before anything is allocated
    field = build(field)
    for p in list(parameters(field)):
        value = stored.get(f"{TRAIN}{name}.{p.name}")
        ensure(value is not None, f"the file lacks {shown(f'{name}.{p.name}')}.")
        p.write(value, name)
    return field


def require_safetensors() -> Any:
    """The package safetensors; raises ``ImportError`` if it is missing or too old."""
    try:
        import safetensors
    except ImportError:
        raise ImportError(
            "Checkpoints need the package safetensors; pip install safetensors, or coopnet[train]."
        ) from None
    if tuple(map(int, safetensors.__version__.split(".")[:2])) < (0, 8):
        given = f"{safetensors.__version__} is installed; run pip install --upgrade safetensors"
        raise ImportError(f"Checkpoints need safetensors 0.8 or newer, but {given}.")
    return safetensors


def _training_array(name: Any, value: Any) -> np.ndarray:
    kind = type(name).__name__
    ensure(isinstance(name, str), f"save: tensors has a {kind} for a name; names must be strings.", TypeError)
    valid = not any("\ud800" <= character <= "\udfff" for character in name)
    ensure(valid, f"save: tensors has the name {shown(name)}, which is no valid Unicode.")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"save: tensors[{shown(name)}] is not an array: {error}") from None
    known = array.dtype.newbyteorder("=").type in _NAMES
    ensure(known, f"save: tensors[{shown(name)}] holds {array.dtype}; bools, integers or floats are needed.", TypeError)
    return np.require(array, array.dtype.newbyteorder("<"), "C")


def _opening(contents: Mapping[str, np.ndarray], metadata: dict[str, str], path: Any) -> bytes:
    """The bytes before the numbers in a safetensors file: length and header."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in contents.items():
        begin, end = end, end + array.nbytes
        dtype = _NAMES[array.dtype.newbyteorder("=").type]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    takes = f"architecture, metadata and names take {len(text)} bytes"
    _ensure(len(text) <= _LONGEST, "save", path, f"{takes}; a safetensors file has at most {_LONGEST} for them.")
    return len(text).to_bytes(8, "little") + text


def _user_metadata(metadata: Mapping[str, Any]) -> str:
    check_type("save", "metadata", metadata, Mapping, "a mapping from names to values")
    strings = all(isinstance(name, str) for name in metadata)
    ensure(strings, "save: the names in metadata must be strings.", TypeError)
    try:
        return json.dumps(dict(metadata), allow_nan=False)
    except RecursionError:
        raise ValueError("save: metadata must be something JSON can hold, but is nested too deep.") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"save: metadata must be something JSON can hold: {error}") from None


# ---- files --------------------------------------------------------------


def _bad(where: str, path: Any, what: str) -> ValueError:
    return ValueError(f"{where}: {file_name(path, where)!r}: {what if len(what) <= 800 else what[:797] + '...'}")


def _ensure(ok: Any, where: str, path: Any, what: str) -> None:
    if not ok:
        raise _bad(where, path, what)


def read_file(path: str | os.PathLike[str], where: str, training: bool) -> Checkpoint:
    """As :func:`read`, with errors of the function ``where``; without ``training``, no tensors of a run."""
    library = require_safetensors()
    path = file_name(path, where)
    _ensure(regular(path, where).st_size, where, path, "not a safetensors file: it is empty.")
    open(path, "rb").close()  # raises PermissionError, naming the path
    tensors = {}
    try:
        # not mapped into memory: if a mapped file is truncated, this process ends (SIGBUS)
        with naming(path), library.safe_open(path, framework="np", backend="pread") as file:
            header = file.metadata() or {}
            architecture, user = _header(header, where, path)
            for name in file.keys():  # noqa: SIM118 - no dictionary
                if name.startswith(TRAIN) and not training:
                    continue
                kind = file.get_slice(name).get_dtype()
                _ensure(kind in _DTYPES, where, path, f"{name} has the type {kind}, which NumPy does not know.")
                try:
                    tensors[name] = file.get_tensor(name)
                except (ValueError, TypeError, OverflowError) as error:  # NumPy rejects the shape
                    raise _bad(where, path, f"{shown(name)} cannot be read: {error}.") from None
    except library.SafetensorError as error:
        hint = "; coopnet convert makes one of a configuration" if str(path).lower().endswith(".json") else ""
        raise _bad(where, path, f"not a safetensors file, or a damaged or truncated one ({error}){hint}.") from None
    return Checkpoint(architecture, user, tensors)


def _header(header: Mapping[str, str], where: str, path: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The architecture, and the caller's metadata, from the header of a file."""
    foreign = "a safetensors file, but not one of coopnet: it does not describe a field."
    _ensure("coopnet" in header, where, path, foreign)
    try:
        architecture = json.loads(header["coopnet"], parse_constant=_no_constant)
        user = json.loads(header.get("user", "{}"), parse_constant=_no_constant)
        check_format(architecture)
    except (ValueError, RecursionError) as error:
        raise _bad(where, path, f"its header cannot be understood: {error}") from None
    _ensure(isinstance(user, dict), where, path, "its header cannot be understood: 'user' must be a dictionary.")
    return architecture, user


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON.")
