"""A web page around an exported field: shaders from templates, weights, and text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

import drjit as dr
import numpy as np

from ....backend import namespace
from ....bounds import corners
from ....checks import check, check_above, check_choice, check_flag, ensure, entries, is_int, is_number, plain
from ....field import NeuralField
from ....random.key import Key
from ....uncertainty import draws, mc_dropout
from ....version import __version__
from ..material import Reflection
from ..targets import TARGETS, Listing
from ..weights import WeightFile

#: ``program(language, name, dropout, derivatives)`` writes the field.
Printed = Callable[[str, str, bool, bool], Listing]
#: Bytes of weights that textures of WebGL 2 hold on all but the smallest devices.
LARGEST = 2**26
#: The color of the values ``y``, in both languages; ``checks`` is the chessboard behind transparent ones.
COLOURS = {
    1: "vec3(y[0])",
    2: "vec3(y[0], y[1], 0.0)",
    3: "vec3(y[0], y[1], y[2])",
    4: "mix(vec3(checks), vec3(y[0], y[1], y[2]), clamp(y[3], 0.0, 1.0))",
}
#: As in :mod:`coopnet.mesh.view`: pages draw surfaces like its pictures.
SURFACE = {
    "STEPS": 256, "EPS": "2e-4", "LIPSCHITZ": 1.25, "DIFFERENCE": "4e-3", "GAMMA": 2.2, "COLOUR": "0.74, 0.62, 0.46",
}  # fmt: skip
SHOWN, SHAPES = ("field", "mean", "deviation"), ("sphere", "square")
_POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"
_GLSL = """#version 300 es
precision highp float;
precision highp int;
precision highp usampler2D;
uniform usampler2D words;
uniform vec4 u[8];
#define FIELD_WORD(i) texelFetch(words, ivec2(int((i) & 2047u), int((i) >> 11u)), 0).r
#define MASKED_WORD(i) FIELD_WORD(i)
"""
_WGSL = """@group(0) @binding(0) var<storage, read> field_weights: array<u32>;
@group(0) @binding(1) var<uniform> u: array<vec4f, 8>;
"""
_WGSL_MASKED = "@group(0) @binding(2) var<storage, read> masked_weights: array<u32>;"


@dataclass(frozen=True)
class View:
    """What a page of ``export(field, "html", ...)`` shows, and from where.

    Args:
        title: of the page.
        region: the part of a field's plane or space that is drawn: left, top, width and height, or the six numbers of
            two opposite corners of a box. ``None``: the box of the field's bounds, or the unit square or cube.
        azimuth, elevation: of the camera around a surface or a material, in degrees.
        up: the axis of a surface that points up, ``"x"``, ``"y"`` or ``"z"``.
        smooth: compute normals from differences of the distance over 0.004 of the box, as ``coopnet render`` does,
            instead of the field's derivatives. This hides the cells of grids. The page has a check box for it.
        show: for an image with dropout, or from :func:`laplace` or :func:`ensemble`: ``"field"``, or ``"mean"`` or
            ``"deviation"`` over masks or other draws. The page has a menu for it.
        masks: the number of masks when the page opens, 2 to 256.
        shape: what shows the material, a ``"sphere"`` of radius 1 about the origin with its poles on the z axis, or a
            ``"square"`` of side 2 that faces the camera. The page has a menu for it.
        light: azimuth and elevation in degrees of the point light of a material, at a distance of 4 from the origin.
        intensity: of that light, in W/sr, as Mitsuba's ``point`` has it.
        moving: does the light swing, 80 degrees to both sides of the camera? The page has a check box for it.

    Settings that do not apply to a field, such as ``up`` for an image, are errors of :func:`export`.

    Raises:
        TypeError, ValueError: arguments of other types or out of range.

    >>> cn.export(field, "html", "page.html", view=cn.interop.export.View(title="A field", region=(0, 0, 2, 1)))
    """

    title: str = "Neural field"
    region: tuple[float, ...] | None = None
    azimuth: float = 30.0
    elevation: float = 20.0
    up: str = "y"
    smooth: bool = False
    show: str = "field"
    masks: int = 32
    shape: str = "sphere"
    light: tuple[float, float] = (80.0, 40.0)
    intensity: float = 30.0
    moving: bool = False

    def __post_init__(self) -> None:
        for name in ("azimuth", "elevation", "masks", "intensity"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        check(isinstance(self.title, str), "View", "title", self.title, "a string", TypeError)
        check(self.region is None or _is_region(self.region), "View", "region", self.region, _REGION)
        check(is_number(self.azimuth), "View", "azimuth", self.azimuth, "a number")
        inside = is_number(self.elevation) and -90 < self.elevation < 90
        check(inside, "View", "elevation", self.elevation, "a number between -90 and 90")
        check_choice("View", "up", self.up, ("x", "y", "z"))
        check_flag("View", "smooth", self.smooth)
        check_choice("View", "show", self.show, SHOWN)
        check(is_int(self.masks, 2, 256), "View", "masks", self.masks, "an int in [2, 256]")
        check_choice("View", "shape", self.shape, SHAPES)
        light = entries("View", "light", self.light) if isinstance(self.light, (tuple, list)) else []
        angles = len(light) == 2 and all(map(is_number, light)) and -90 <= light[1] <= 90
        check(angles, "View", "light", self.light, "azimuth and elevation in degrees, the latter in [-90, 90]")
        check_above("View", "intensity", self.intensity)
        check_flag("View", "moving", self.moving)


_REGION = "left, top, width and height, or the least and then the largest coordinates of a box; sizes must be positive"


def _is_region(region: Any) -> bool:
    region = entries("View", "region", region) if isinstance(region, (tuple, list)) else []
    if not all(is_number(v) for v in region):
        return False
    sizes = region[2:] if len(region) == 4 else np.subtract(region[3:], region[:3]) if len(region) == 6 else [0]
    return all(s > 0 for s in sizes)


#: Settings only for surfaces, only for materials, and only for uncertainty.
_OF_SURFACES, _OF_MATERIALS = {"up", "smooth"}, {"shape", "light", "intensity", "moving"}
_OF_MASKS = {"show", "masks"}
_OF_CAMERAS = {"azimuth", "elevation"}  #: for surfaces and materials


def _kind(field: NeuralField | Reflection) -> str:
    """The kind of page that shows ``field``."""
    if isinstance(field, Reflection):
        return "material"
    return "surface" if field.in_features == 3 else "image"


def _is_uncertain(field: NeuralField | Reflection) -> bool:
    """Does the page of ``field`` show a deviation?"""
    return isinstance(field, NeuralField) and _kind(field) == "image" and draws(field)


def check_view(field: NeuralField | Reflection, view: View) -> None:
    """Raises ``ValueError`` for settings of ``view`` that do not apply to ``field``."""
    kind, given = _kind(field), len(view.region or ())
    if kind == "material":
        what = "the field is a material"
        ensure(not given, "export: region of view is for images and surfaces, but the field is a material; leave out.")
    else:
        numbers, what = 6 if kind == "surface" else 4, f"the field has {field.in_features} coordinates"
        needed = f"{numbers} numbers are needed for a field of {field.in_features} coordinates"
        ensure(given in (0, numbers), f"export: region of view has {given} numbers; {needed}.")
    uncertain = _is_uncertain(field)
    changed = [f.name for f in fields(View) if getattr(view, f.name) != f.default]
    of_surfaces = _OF_SURFACES if kind == "material" else _OF_SURFACES | _OF_CAMERAS
    for names, valid, of in (
        (of_surfaces, kind == "surface", f"surfaces, but {what}"),
        (_OF_MATERIALS, kind == "material", f"materials, but {what}"),
        (_OF_MASKS, uncertain, "images with dropout or other draws, which the field is not"),
    ):
        unused = [name for name in changed if name in names]
        ensure(valid or not unused, f"export: {' and '.join(unused)} of view: only for {of}; leave out.")


def document(field: NeuralField | Reflection, program: Printed, view: View) -> str:
    """The text of the page.

    Raises ``ValueError`` for a field that pages cannot draw.
    """
    coordinates, kind = field.in_features, _kind(field)
    code = {target: program(target, "field", False, kind == "surface") for target in ("wgsl", "glsl")}
    weights, outputs = code["wgsl"].weights, code["wgsl"].functions[-1].results[0].size
    assert outputs is not None
    suitable = {"image": coordinates == 2 and outputs in COLOURS, "surface": outputs == 1, "material": True}[kind]
    needed = "2 coordinates and 1 to 4 values (an image), or 3 coordinates and 1 value (a signed distance), are needed"
    ensure(suitable, f"export: a page cannot show a field of {coordinates} coordinates and {outputs} values; {needed}.")
    ensure(
        weights.length <= LARGEST, f"export: the weights take {weights.length} bytes; a page holds at most {LARGEST}."
    )
    uncertain = _is_uncertain(field)

    data: dict[str, Any] = {
        "title": view.title,
        "view": kind,
        "facts": _facts(field, outputs, weights),
        "weights": base64.b64encode(b"".join(weights.file())).decode(),
    }
    for target, opening in (("wgsl", _WGSL), ("glsl", _GLSL)):
        sources = [TARGETS[target](code[target]).source()]
        if uncertain:
            masked = program(target, "masked", True, False)
            assert masked.weights.digest == weights.digest
            sources += [_WGSL_MASKED if target == "wgsl" else "", TARGETS[target](masked).source()]
        data[target] = "\n".join([opening, *sources, _shader(target, kind, outputs, uncertain)])
    if kind != "image":
        data["angles"] = [float(view.azimuth), float(view.elevation)]
    if isinstance(field, Reflection):
        data |= {"shape": SHAPES.index(view.shape), "moving": view.moving}
        data |= {"light": [float(v) for v in view.light], "intensity": float(view.intensity)}
    else:
        low, high = corners(field.bounds, coordinates)
        data["region"] = [float(v) for v in view.region or (*low, *(high if kind == "surface" else high - low))]
        if kind == "surface":
            data |= {"up": view.up, "smooth": view.smooth}
        elif uncertain:
            data |= {"shown": SHOWN.index(view.show), "samples": view.masks, "white": _white(field, data["region"])}
    style, script = _part("page.css"), _part("page.js")
    parts = {"POLICY": _POLICY.format(script=_hash(script), style=_hash(style)), "DATA": _json(data)}
    return _filled(_part("page.html"), parts | {"STYLE": style, "SCRIPT": script})


def _facts(field: NeuralField | Reflection, outputs: int, weights: WeightFile) -> list[list[str]]:
    types = sorted({t.array.dtype.name for t in weights.tables})
    numbers = sum(t.array.size for t in weights.tables)
    what = ["Field", f"{field.in_features} coordinates, {outputs} values"]
    if isinstance(field, Reflection):
        what = ["Material", "u, v and two directions, 3 values: the BSDF times the cosine"]
    return [
        what,
        ["Weights", f"{numbers:,} numbers ({', '.join(types) or 'none'}), {weights.length:,} bytes"],
        ["SHA-256", weights.field],
        ["Written by", f"coopnet {__version__}"],
    ]


def _shader(target: str, kind: str, outputs: int, uncertain: bool) -> str:
    if kind != "image":
        return _filled(_part(f"{kind}.{target}"), SURFACE)
    declared = {
        "wgsl": "fn shown(x: array<f32, 2>, pixel: vec2f) -> vec3f { return plain(x, pixel); }",
        "glsl": "vec3 shown(float x[2], vec2 pixel) { return plain(x, pixel); }",
    }
    shown = _part(f"masks.{target}") if uncertain else declared[target]
    return _filled(_part(f"image.{target}"), {"OUTPUTS": outputs, "COLOUR": COLOURS[outputs], "SHOWN": shown})


def _white(field: NeuralField, region: list[float]) -> float:
    """The deviation that is drawn white, which few points exceed: from 8 masks at 64 x 64 points."""
    ns, side = namespace(field.backend), 64
    grid = (np.arange(side, dtype=np.float32) + 0.5) / side
    x, y = np.meshgrid(region[0] + region[2] * grid, region[1] + region[3] * grid)
    with dr.suspend_grad():
        points = [ns.Float(np.ascontiguousarray(v.ravel(), np.float32)) for v in (x, y)]
        deviation = mc_dropout(field, points, Key(0), 8)[1]
        dr.eval(deviation)
    values = np.sqrt(np.mean([np.square(dr.detach(v).numpy().astype(np.float32)) for v in deviation], axis=0))
    white = float(np.quantile(values[np.isfinite(values)], 0.98)) if np.isfinite(values).any() else 0.0
    return float(f"{white:.1g}") or 0.1


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _filled(text: str, values: dict[str, Any]) -> str:
    """``text`` with every ``@NAME@`` replaced in one pass: values are not searched for names."""
    return re.sub("@([A-Z]+)@", lambda match: str(values[match[1]]), text)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that is safe anywhere in HTML: it ends no element and begins no comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
