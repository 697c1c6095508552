"""The integrator ``neural_volpath``."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ...checks import ensure
from ...random.key import Key
from .. import keys
from ..variants import check_unpolarized, per_variant, remade
from ..volume.loop import trace
from ..volume.scene_media import SceneMedia
from .named_objects import given
from .path_replay import path_replay


@per_variant
def NeuralVolpath() -> type:
    class NeuralVolpath(path_replay()):  # type: ignore[misc]
        r"""A volumetric path tracer that evaluates :class:`NeuralMedium` outside virtual calls, and shows its emission.

        If no medium emits, its picture is that of Mitsuba's ``volpath``, up to noise: Mitsuba's surfaces, emitters and
        media are treated the same way. Absorption lowers the weight of paths instead of ending them.

        ``mi.render(scene, params)`` is differentiable in reverse mode by path replay (Vicini et al. 2021), as with
        ``prbvolpath``, with respect to weights of the media's networks, and parameters of other media, phase functions,
        materials and emitters, but not geometry. Weight gradients are summed by :func:`coopnet.gradient_banks`.

        The plugin is called ``neural_volpath``, and has the arguments except ``key`` as properties.

        Args:
            max_depth: longest path, in edges; collisions that scatter nothing are not counted. -1 for no limit.
            rr_depth: number of edges after which Russian roulette may end paths.
            hide_emitters: leave out the emitters that the camera sees directly, and show black in their place.
            banks: accumulators of each network's weight gradients on CUDA (see :func:`coopnet.gradient_banks`); 0
                chooses by the number of paths.
            key: turns dropout of all neural media on. Without an index, every path has its own masks, the same at
                all of its collisions. An index is used as it is.

        Raises:
            TypeError, ValueError: arguments of other kinds and values.
            RuntimeError: derivatives in forward mode.

        >>> image = mi.render(scene, integrator=cn.mitsuba.NeuralVolpath(max_depth=16))
        """

        def __init__(
            self, max_depth: int = -1, rr_depth: int = 5, hide_emitters: bool = False, banks: int = 0,
            key: Key | None = None, properties: Any = None,
        ):  # fmt: skip
            where = "NeuralVolpath"
            check_unpolarized(where)
            super().__init__(where, max_depth, rr_depth, hide_emitters, banks, key, properties)

        def sample(
            self, mode: Any, scene: Any, sampler: Any, ray: Any, δL: Any = None, state_in: Any = None,
            active: Any = True, **_: Any,
        ) -> tuple:  # fmt: skip
            forward = "NeuralVolpath: derivatives in forward mode are not possible; use dr.backward"
            ensure(mode != dr.ADMode.Forward, f"{forward}.", RuntimeError)
            keys.check_paths(self.key, dr.width(ray), "NeuralVolpath")
            return trace(self, SceneMedia(scene), mode, scene, sampler, ray, δL, state_in, active)

        def fields(self, scene: Any) -> list:
            """Fields whose weight gradients are summed."""
            return [medium.field for medium in SceneMedia(scene).media]

        def to_string(self) -> str:
            return f"NeuralVolpath[max_depth={self.longest}, rr_depth={self.rr_depth}]"

        def __reduce__(self) -> tuple:
            options = {name: getattr(self, name) for name in ("rr_depth", "hide_emitters", "banks", "key")}
            return remade, ("NeuralVolpath", {"max_depth": self.longest, **options}, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """The plugin ``neural_volpath`` of a scene description."""
            names = ("max_depth", "rr_depth", "hide_emitters", "banks")
            return cls(**given(properties, *names), properties=properties)

    return NeuralVolpath
