"""Export of fields: the function, its arguments and files."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...checks.warn import warn
from ...checks import check, check_choice, check_flag, check_type, ensure, shown, shown_path
from ...field import PRECISIONS, NeuralField
from ...io.files import atomic_write, file_name, writable
from ...jit.scopes import check_outside
from ...nn.lattice import Lattice
from ...nn.tree import children
from ...uncertainty import draws
from ...version import __version__
from . import drawn, encodings  # noqa: F401  # add their rules
from .derivative import with_jacobian
from .language import F32, U32, Routine, Var, Vec
from .layers import Lowering, lower_field
from .material import Reflection, fields_of, hash_of, lower_material
from .page.document import View, check_view, document
from .reserved import reserved
from .targets import TARGETS, Listing
from .weights import WeightFile, fingerprint

#: Weights inside a source give a warning if they take more bytes.
LARGE = 2**20


class Exported(NamedTuple):
    """The files that :func:`export` wrote; ``weights`` is ``None`` if they are in the source.

    >>> cn.export(field, "c", "sdf.c").weights
    """

    source: Path
    weights: Path | None


def export(
    field: NeuralField | Reflection | Any,
    target: str,
    path: str | os.PathLike[str],
    *,
    name: str = "field",
    precision: str = "auto",
    grids: str = "auto",
    dropout: bool = False,
    derivatives: bool = False,
    inline: bool | None = None,
    view: View | None = None,
) -> Exported:
    """Write ``field`` as a function in another language: a position in, values out.

    The source has no dependencies: encoding, network and output activation are loops in it. Its head says how to call
    it. The weights are a binary file beside it, ``sdf.glsl.weights`` for ``sdf.glsl``. Small ones are constants in the
    source. ``docs/export.md`` describes how layers are translated, the format of the file, and limits.

    Args:
        field: a built :class:`NeuralField`; or a material, a ``cn.mitsuba.NeuralBSDF``: its ``eval`` as a function of
            :class:`Reflection`'s eight numbers. Sampling and densities are left out.
        target: ``"c"`` (C99), ``"glsl"``, ``"wgsl"``, ``"slang"``, ``"slang-coopvec"`` (Slang with cooperative vectors
            for the linear layers), ``"numpy"``, or ``"html"``: a web page that draws the field, an image of 2
            coordinates and 1 to 4 values, or a signed distance of 3 coordinates and 1 value; or a material on a sphere
            or square, under a light that can be moved.
        path: of the source, such as ``"sdf.glsl"``.
        name: of the function; all other names that the source defines begin with it.
        precision: of the weights: ``"half"``, ``"single"``, or ``"auto"`` for the field's own. Numbers are computed in
            single precision, by cooperative vectors in half.
        grids: precision of the features of grids: ``"half"``, ``"single"``, ``"uint8"`` (256 values between the
            smallest and largest of a level), or ``"auto"`` for that of the weights. Features that are in half precision
            in the field stay so with ``"single"``.
        dropout: give the function a key of four 32-bit words: the seed's lower and upper half, index and step. Its
            masks are those of :class:`Key` to the bit. The key also draws the parameters and displacements of
            :func:`laplace`, or a member of an :func:`ensemble` (whose members have no dropout).
        derivatives: also write ``name_jacobian``, which gives values and derivatives with respect to the position.
        inline: put the weights into the source? ``None`` does so up to 8192 bytes; up to 2048 in GLSL and 512 in Slang,
            because Vulkan drivers take too long to compile more. More than 1 MiB is slow in all compilers, and gives a
            ``UserWarning``.
        view: what a web page shows, and from where.

    Returns:
        The paths of both files.

    Raises:
        TypeError: arguments of other types; a layer that cannot be exported.
        ValueError: unknown names; a field that is not built; arguments that do not apply to this field or target:
            ``dropout`` or ``grids`` of a field that has none, ``view`` of a source, ``name`` of a page, a ``View`` with
            an axis for an image, ``dropout`` of a material; a material with a perfectly specular part; numbers that the
            precision cannot hold; a position-dependent schedule; ``path`` is not a name of a file, or one of weights.
        OSError: a file cannot be written. The weights are written first, and existing files are replaced as a whole.
        RuntimeError: called while Dr.Jit records a frozen function or a loop.

    >>> cn.export(field, "glsl", "sdf.glsl", name="sdf", derivatives=True)
    """
    field = getattr(field, "as_material", lambda: field)()
    request = Request(field, target, name, precision, grids, dropout, derivatives, inline, view)
    path = file_name(path, "export")  # a plain string
    source, written = writable(path, "export"), Path(f"{path}.weights")
    called = source.suffix.lower() == ".weights"
    other = "but .weights is the suffix of files of weights; use another"
    ensure(not called, f"export: path is {shown_path(source)!r}, {other}.")
    beside = writable(written, "export")
    check_outside("export")
    if target == "html":
        function = replace(request, target="wgsl", inline=False, view=None, whole=True)

        def printed(language: str, called: str, masked: bool, jacobian: bool) -> Listing:
            return _program(replace(function, target=language, name=called, dropout=masked, derivatives=jacobian))

        page = document(request.field, printed, view or View())
        atomic_write(source, lambda temporary: temporary.write_bytes(page.encode()))
        return Exported(Path(path), None)
    program = _program(request)
    if program.inside and program.weights.end > LARGE:
        _warn(program.weights.end)
    text = TARGETS[target](program).source().encode("ascii")
    if program.outside:
        atomic_write(beside, lambda temporary: _write(temporary, program.weights))
    atomic_write(source, lambda temporary: temporary.write_bytes(text))
    return Exported(Path(path), written if program.outside else None)


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`export`. Raises its errors for arguments that are invalid, or do not apply to this field
    or target."""

    field: NeuralField | Reflection
    target: str
    name: str = "field"
    precision: str = "auto"
    grids: str = "auto"
    dropout: bool = False
    derivatives: bool = False
    inline: bool | None = None
    view: View | None = None
    whole: bool = False  #: include weights that only draws need, even without dropout?

    def __post_init__(self) -> None:
        where, field, target, inline = "export", self.field, self.target, self.inline
        check_type(where, "field", field, (NeuralField, Reflection), "a NeuralField or a material")
        ensure(field.precision, "export: the field is not built yet; call field = field.build().")
        check_choice(where, "target", target, (*TARGETS, "html"))
        check_choice(where, "precision", self.precision, ("auto", *PRECISIONS))
        check_choice(where, "grids", self.grids, ("auto", *PRECISIONS, "uint8"))
        check_flag(where, "dropout", self.dropout)
        check_flag(where, "derivatives", self.derivatives)
        check(inline is None or isinstance(inline, bool), where, "inline", inline, "True, False or None")
        check_name(self.name)
        check_type(where, "view", self.view, View | None, "a View")
        parts = fields_of(field) if isinstance(field, Reflection) else [field]
        has_grids = self.grids == "auto" or any(isinstance(m, Lattice) for part in parts for m in children(part))
        ensure(has_grids, f"export: grids is {self.grids!r}, but the field has no grids; leave it out.")
        if target == "html":
            for_code = self.dropout or self.derivatives or inline is not None
            problem = "dropout, derivatives and inline are not for web pages, which use what the field has"
            ensure(not for_code, f"export: {problem}; leave them out.")
            call = f"export: name is {self.name!r}, but a web page has no function to call; leave it out."
            ensure(self.name == "field", call)
            check_view(field, self.view or View())
            return
        ensure(self.view is None, f"export: view is for web pages, but target is {target!r}; leave it out.")
        masked = self.dropout and isinstance(field, Reflection)
        ensure(not masked, "export: dropout is True, but materials are exported without; leave it out.")
        drops = not self.dropout or draws(field)
        ensure(drops, "export: dropout is True, but the field has no dropout, and nothing else to draw; leave it out.")
        printer, precision = TARGETS[target], self.weights_precision
        only = f"cooperative vectors have {printer.precision} precision; leave precision out, or use target='slang'"
        ensure(printer.precision in (None, precision), f"export: precision is {precision!r}, but {only}.")
        buffer = f"export: inline is True, but target {target!r} reads weights from a buffer."
        ensure(printer.inlines or not inline, buffer)
        if target == "numpy" and (self.name == "numpy" or self.name in sys.stdlib_module_names):
            hides = "a Python file of that name would hide a module of Python's"
            raise ValueError(f"export: name is {shown(self.name)}, and {hides}; choose another name.")

    @property
    def weights_precision(self) -> str:
        """``precision``, with ``"auto"`` resolved."""
        auto = TARGETS[self.target].precision or self.field.precision
        return str(auto if self.precision == "auto" else self.precision)


def _warn(size: int) -> None:
    text = len("0x00000000, ") * size // 4 / 2**20
    warn(
        f"export: inline puts {size} bytes of weights into the source, {text:.0f} MiB of text that every compilation "
        "reads; leave inline out, and they are a file beside it.",
        UserWarning,
    )


def _write(path: Path, weights: WeightFile) -> None:
    with open(path, "wb") as file:
        file.writelines(weights.file())


def _program(request: Request) -> Listing:
    field, name = request.field, str.__str__(request.name)  # a plain string
    precision, printer, weights = request.weights_precision, TARGETS[request.target], WeightFile()
    grids = precision if request.grids == "auto" else request.grids
    x, key = Var("x", F32, field.in_features), Var("key", U32, 4) if request.dropout else None
    to = Lowering(weights, precision, grids, name, field.precision == "half", key, request.whole)
    v = Vec(x, 0, field.in_features)
    v = lower_material(to, field, v) if isinstance(field, Reflection) else lower_field(to, field, v)
    y = Var("y", F32, v.size)
    to.block.copy(v, Vec(y, 0, v.size))
    weights.close(hash_of(field) if isinstance(field, Reflection) else fingerprint(field))
    function = Routine(name, (x,) if key is None else (x, key), (y,), to.block.statements)
    functions = [*to.functions.values(), function]
    if request.derivatives:
        functions.append(with_jacobian(function, f"{name}_jacobian"))
    inline = weights.end <= printer.tiny if request.inline is None else request.inline
    grid = "" if grids == precision else f", grids in {grids}"
    subject, title = f"field of {x.size} coordinates and {y.size} values", "Field"
    if isinstance(field, Reflection):
        subject, title = "material: the BSDF times the cosine of wo at x = u, v, wi.xyz, wo.xyz", "Material"
    about = [
        f"A neural {subject}, written by coopnet {__version__}.",
        f"{title} {weights.field[:32]} (SHA-256, the first 16 bytes), weights in {precision} precision{grid}.",
        "Without dropout." if key is None else "Dropout is on.",
        "",
    ]
    return Listing(name, functions, weights, printer.inlines and inline, about)


def check_name(name: Any) -> None:
    """Raise ``ValueError`` unless a function can have this name in all languages."""
    valid = isinstance(name, str) and len(name) <= 64 and re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", name)
    needed = "a name of letters, digits and single underscores that means nothing in these languages"
    check(valid and not reserved(name), "export", "name", name, needed)
