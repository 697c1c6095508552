"""The inputs of a field at a point on a surface: position, direction of view, normal and material."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import drjit as dr
import mitsuba as mi

from ...checks import ensure
from ...field import NeuralField
from ...random.key import Key

#: Inputs of a radiance cache by name, with the number of components of each, in their order.
INPUTS = {"position": 3, "direction": 3, "normal": 3, "roughness": 1, "diffuse": 3, "specular": 3}

#: Names of the attributes of Mitsuba's BSDFs for roughness and the color of the specular lobe.
_ROUGHNESS = ("roughness", "alpha")
_SPECULAR = "specular_reflectance"


class Material(NamedTuple):
    """Diffuse and specular reflectance in [0, 1] (three components each), roughness in [0, 1], ``factor`` (the diffuse
    reflectance of purely diffuse materials, 1 for all others), and ``dark``, true for the back of a one-sided material.
    """

    diffuse: Any
    specular: Any
    roughness: Any
    factor: Any
    dark: Any


def material(bsdf: Any, si: Any, active: Any) -> Material:
    """The material at ``si`` by one virtual call; a branch in Python picks the attributes that each BSDF has.

    The diffuse reflectance is ``eval_diffuse_reflectance`` of BSDFs with a diffuse lobe, and 0 for others. The specular
    reflectance is ``specular_reflectance``; without this attribute it is 1 for BSDFs with a specular or glossy lobe,
    and 0 for others. The roughness is ``roughness`` or ``alpha``; without these attributes it is 0 for BSDFs with a
    perfectly specular lobe and no diffuse one, and 1 for others. These numbers only help the field to distinguish
    materials; they do not describe layered materials.
    """

    def ask(self: Any, si: Any, active: Any) -> Any:
        flags = int(self.flags())
        lobes = [bool(flags & int(kind)) for kind in (mi.BSDFFlags.Diffuse, mi.BSDFFlags.Glossy | mi.BSDFFlags.Delta)]
        diffuse = dr.clip(self.eval_diffuse_reflectance(si, active), 0, 1) if lobes[0] else mi.Color3f(0)
        specular = mi.Color3f(float(lobes[1]))
        if lobes[1] and _has(self, _SPECULAR):
            specular = dr.clip(mi.Color3f(self.eval_attribute_3(_SPECULAR, si, active)), 0, 1)
        roughness = mi.Float(1.0 if lobes[0] or not flags & int(mi.BSDFFlags.Delta) else 0.0)
        for name in _ROUGHNESS:
            if _has(self, name):
                roughness = dr.clip(self.eval_attribute_1(name, si, active), 0, 1)
                break
        dark = mi.Bool(False) if flags & int(mi.BSDFFlags.BackSide) else mi.Frame3f.cos_theta(si.wi) <= 0
        return diffuse, specular, roughness, diffuse if lobes == [True, False] else mi.Color3f(1), dark

    return Material(*dr.dispatch(bsdf, ask, si, active))


def _has(bsdf: Any, name: str) -> bool:
    mask = bsdf.has_attribute(name)
    return bool(mask if isinstance(mask, bool) else mask[0])


class Box(NamedTuple):
    """The scene's bounding box, a little larger, as a map to the unit cube that keeps proportions."""

    origin: Any
    scale: Any

    @classmethod
    def from_scene(cls, scene: Any, where: str) -> Box:
        """The box of ``scene``; raises ``ValueError`` if the scene has no surface, or its box has no extent."""
        box = scene.bbox()
        side = max(float(v) for v in box.extents())
        ensure(scene.shapes() and 0 < side < math.inf, f"{where}: the scene has no surface with an extent.")
        center = [float(v) for v in box.center()]
        scale = 1 / (1.02 * side)
        return cls(tuple(c - 0.5 / scale for c in center), scale)

    def to_unit(self, p: Any) -> Any:
        return dr.clip((p - mi.Vector3f(*self.origin)) * self.scale, 0, 1)


@dataclass
class Question:
    """Inputs of a field, the factor of its output, and a mask. (It is a dataclass, because Dr.Jit does not traverse
    named tuples.)
    """

    inputs: list
    factor: Any
    active: Any


def inputs(si: Any, surface: Material, box: Box) -> list:
    """The 16 inputs of a radiance cache at ``si``, all in [0, 1], in the order of :data:`INPUTS`.

    Direction (to the viewer) and normal are unit vectors :math:`v` of the world as :math:`(v + 1) / 2`; roughness
    :math:`r` is :math:`1 - e^{-r}` (Müller et al. 2021, table 1, where directions are pairs of angles).
    """
    normal = dr.select(dr.dot(si.n, si.to_world(si.wi)) < 0, -si.sh_frame.n, si.sh_frame.n)  # of the visible side
    parts = [box.to_unit(si.p), 0.5 * si.to_world(si.wi) + 0.5, 0.5 * normal + 0.5]
    roughness = 1 - dr.exp(-surface.roughness)
    return [c for v in parts for c in v] + [roughness, *surface.diffuse, *surface.specular]


class SurfaceRadiance(NamedTuple):
    """Radiance from a field's output, which is in units of ``scale`` and, if ``factored``, of the reflectance."""

    box: Box
    factored: bool
    scale: float

    def ask(self, si: Any, active: Any) -> Question:
        """The inputs with which a field is evaluated at the interactions ``si``; inactive on backs that are dark."""
        active = mi.Bool(active) & si.is_valid()
        surface = material(si.bsdf(), si, active)
        unit = mi.Color3f(self.scale)
        factor = surface.factor * unit if self.factored else unit
        return Question(inputs(si, surface, self.box), factor, active & ~surface.dark)

    def answer(self, field: NeuralField, question: Question, key: Key | None = None) -> Any:
        """The radiance by ``field``, which may be negative; 0 in inactive lanes."""
        return mi.Color3f(field(question.inputs, key, question.active)) * question.factor

    def __call__(self, field: NeuralField, si: Any, active: Any, key: Key | None = None) -> Any:
        """The radiance that leaves ``si`` towards ``si.wi``, at least 0; 0 where nothing was hit."""
        return dr.maximum(self.answer(field, self.ask(si, active), key), 0)
