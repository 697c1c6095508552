"""A material in the exported language: a decoder of a latent code and two directions."""

from __future__ import annotations

import os
import functools
import hashlib
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...checks import check, check_choice, check_type, ensure, is_number
from ...field import NeuralField, check_built
from ...io import load, read
from ...io.checkpoint import part_of
from ...io.files import file_name
from .language import F32, At, Block, Expr, Vec, call, select, u32
from .layers import Lowering, lower_field
from .weights import fingerprint

#: As in :mod:`coopnet.mitsuba.bsdf.directions` and :mod:`coopnet.mitsuba.bsdf.decoder`.
DIRECTIONS = {"rusinkiewicz": 8, "plain": 6}
SHARP, LARGEST = 1000.0, 11.5
#: The entry of a checkpoint's metadata that describes a material.
ENTRY = "mitsuba.neural_bsdf"
#: Reasons why a material cannot be exported.
SPECULAR = "has a perfectly specular part, which a function of directions cannot express"
TRANSMITS = "transmits; only reflections can be exported"


@dataclass(frozen=True)
class Reflection:
    r"""The part of a :class:`coopnet.mitsuba.NeuralBSDF` that :func:`export` writes: its values, without sampling.

    A function of eight numbers, u, v and the components of the unit vectors :math:`\omega_i` and :math:`\omega_o`, with
    three values, red, green and blue, in 1/sr: the BSDF times the cosine, as ``eval`` of Mitsuba's BSDFs returns it,

    .. math:: f(u, v, \omega_i, \omega_o) \cos\theta_o = \exp(\min(y, 11.5))\, \omega_{o,z}, \quad
        y = \mathrm{decoder}(\mathrm{latent}(u, v), \mathrm{features}(\omega_i, \omega_o))

    and 0 where a direction is below the surface. Light from :math:`\omega_o` with the irradiance :math:`E` on a plane
    perpendicular to it is reflected as the radiance :math:`f \cos\theta_o E`. For a point light of intensity :math:`I`
    at distance :math:`r`, :math:`E = I / r^2`.

    Both directions point away from the surface, :math:`\omega_i` to the eye and :math:`\omega_o` to the light. Their
    components are along Mitsuba's ``si.sh_frame``: the tangent :math:`s`, which is :math:`\partial p / \partial u` made
    orthogonal to the normal, :math:`t = n \times s`, and the normal :math:`n`.

    Args:
        decoder: a built field whose outputs are the logarithms of three colours.
        latent: the code: numbers, or a built field of (u, v), which repeat in unit squares.
        directions: the decoder's features of both directions: ``"rusinkiewicz"``
            (:mod:`coopnet.mitsuba.bsdf.directions`), or ``"plain"`` for their components.

    Raises:
        TypeError, ValueError: fields that are not built, or have other numbers of inputs or outputs (the latter by
            :func:`export`); numbers that are not finite; an unknown name of directions.

    >>> cn.export(cn.interop.export.Reflection(decoder, directions="plain"), "glsl", "metal.glsl")
    """

    decoder: NeuralField
    latent: NeuralField | tuple[float, ...] = ()
    directions: str = "rusinkiewicz"

    def __post_init__(self) -> None:
        check_type("Reflection", "decoder", self.decoder, NeuralField, "a NeuralField")
        check_type("Reflection", "latent", self.latent, (NeuralField, tuple), "a NeuralField or a tuple of numbers")
        check_choice("Reflection", "directions", self.directions, tuple(DIRECTIONS))
        for part in fields_of(self):
            check_built("Reflection", part)
        if isinstance(self.latent, NeuralField):
            given = self.latent.in_features
            ensure(given == 2, f"Reflection: latent has {given} inputs; 2 are needed, u and v.")
        else:
            check(all(map(is_number, self.latent)), "Reflection", "latent", self.latent, "a tuple of finite numbers")

    in_features = 8

    @classmethod
    def load(cls, path: str | os.PathLike[str], backend: Any = "auto", precision: str = "auto") -> Reflection:
        """Load a material that :meth:`NeuralBSDF.save` wrote. Mitsuba is not needed.

        Raises:
            ValueError: it holds no material, or one that transmits or has a perfectly specular part.
            Others: as :func:`coopnet.load`, with the same ``backend`` and ``precision``.

        >>> cn.export(cn.interop.export.Reflection.load("wood.safetensors"), "glsl", "wood.glsl", name="wood")
        """
        decoder, checkpoint = load(path, backend, precision), read(path)
        where, described = f"Reflection: {file_name(path, 'Reflection')!r}", checkpoint.metadata.get(ENTRY)
        if not isinstance(described, dict):
            raise ValueError(f"{where} holds no material; export what coopnet.load makes of it.")
        without = "save NeuralBSDF(bsdf.decoder, bsdf.latent.source()) for the rest"
        ensure(not described.get("specular"), f"{where} {SPECULAR}; {without}.")
        ensure(described.get("eta") is None, f"{where} {TRANSMITS}.")
        try:
            latent = part_of(
                checkpoint, "latent", described.get("latent"), lambda field: field.build(backend, precision)
            )
            latent = latent if isinstance(latent, NeuralField) else tuple(latent or ())
            return cls(decoder, latent, described.get("directions", "rusinkiewicz"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{where} holds no material: {error}") from None

    @property
    def precision(self) -> Any:
        """The precision of the decoder's weights."""
        return self.decoder.precision


def fields_of(material: Reflection) -> list[NeuralField]:
    """The decoder, and the latent code if it is a field."""
    return [material.decoder, *([material.latent] if isinstance(material.latent, NeuralField) else [])]


def hash_of(material: Reflection) -> str:
    """SHA-256 of decoder, latent code and directions."""
    code = "" if isinstance(material.latent, NeuralField) else repr(material.latent)
    parts = [*map(fingerprint, fields_of(material)), code, material.directions]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def lower_material(to: Lowering, material: Reflection, x: Vec) -> Vec:
    """The values of ``material`` at ``x``. Raises ``ValueError`` unless inputs and outputs of its decoder fit."""
    b = to.block
    b.comment("both directions, or the normal where one of them is below the surface")
    lowest = call("min", x.at(4), x.at(7))  # no variable: nobody would read its derivative
    directions = b.vector("directions", 6)
    up = to.constants("up", F32, [0, 0, 1, 0, 0, 1])
    with b.loop("i", 6) as i:
        b.set(directions.at(i), select(lowest > 0, x.at(i + 2), up.at(i)))
    code = _code(to, material.latent, x)
    size = len(code) if isinstance(code, tuple) else code.size
    needed, given = size + DIRECTIONS[material.directions], material.decoder.in_features
    ensure(given == needed, f"Reflection: decoder has {given} inputs; latent and directions make {needed}.")
    inputs = b.vector("inputs", needed)
    if isinstance(code, Vec):
        b.copy(code, inputs.part(0, size))
    elif code:
        numbers = to.constants("code", F32, code)
        with b.loop("i", size) as i:
            b.set(inputs.at(i), numbers.at(i))
    features = {"rusinkiewicz": _rusinkiewicz, "plain": _plain}[material.directions](b, directions)
    for k, feature in enumerate(features):
        b.set(inputs.at(size + k), feature)
    raw = lower_field(to, material.decoder, inputs)
    ensure(raw.size == 3, f"Reflection: decoder has {raw.size} outputs; 3 are needed.")
    b.comment("the BSDF times the cosine")
    y = b.vector("value", 3)
    with b.loop("i", 3) as i:
        value = call("exp", call("min", raw.at(i), LARGEST)) * directions.at(5)
        b.set(y.at(i), select(lowest > 0, value, 0))
    return y


def _code(to: Lowering, latent: NeuralField | tuple[float, ...], x: Vec) -> Vec | tuple[float, ...]:
    if not isinstance(latent, NeuralField):
        return latent
    b = to.block
    b.comment("latent code, in unit squares")
    uv = b.vector("uv", 2)
    with b.loop("i", 2) as i:
        b.set(uv.at(i), x.at(i) - call("floor", x.at(i)))
    return lower_field(to, latent, uv, "latent.")


def _plain(b: Block, directions: Vec) -> Iterator[Expr]:
    yield from map(directions.at, range(6))


def _rusinkiewicz(b: Block, directions: Vec) -> Iterator[Expr]:
    b.comment("half vector h, and the components dx and dy of the incident direction seen from it (Rusinkiewicz 1998)")
    wi, wo = ([directions.at(i) for i in three] for three in (range(3), range(3, 6)))
    h = b.array("h", 3)
    with b.loop("i", 3) as i:
        b.set(At(h, i), directions.at(i) + directions.at(i + 3))
    hx, hy, hz = (At(h, u32(i)) for i in range(3))
    length = b.let("length", call("sqrt", hx * hx + hy * hy + hz * hz))
    with b.loop("i", 3) as i:
        b.set(At(h, i), At(h, i) / length)
    along = b.let("along", (hx * wi[0] + hy * wi[1]) / (hz + 1))
    dx = b.let("dx", wi[0] - hx * (wi[2] + along))
    dy = b.let("dy", wi[1] - hy * (wi[2] + along))
    sharp = call("log", (hx * hx + hy * hy) * SHARP + 1)
    yield sharp * (1 / math.log(1 + SHARP))
    yield from (hx, hy, hz)
    yield functools.reduce(operator.add, (a * c for a, c in zip(wi, (hx, hy, hz), strict=True)))
    yield wi[2] * wo[2]
    yield dx * dx - dy * dy
    yield dx * dy * 2
