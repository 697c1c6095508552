"""The integrator ``neural_volpath``."""

from __future__ import annotations

import contextlib
from typing import Any

import drjit as dr
import mitsuba as mi

from ...checks import check_flag, check_int, ensure
from ...nn.gradient_banks import MOST, gradient_banks
from ...random.key import Key
from .. import call_targets, keys
from ..variants import check_unpolarized, per_variant, remade
from ..volume.loop import trace
from ..volume.scene_media import SceneMedia
from .named_objects import given


@per_variant
def NeuralVolpath() -> type:
    class NeuralVolpath(mi.ad.integrators.common.RBIntegrator):  # type: ignore[name-defined]
        r"""A volumetric path tracer that evaluates :class:`NeuralMedium` outside virtual calls, and shows its emission.

        Where nothing emits, it makes the picture of Mitsuba's ``volpath``, up to noise: surfaces, emitters and media of
        Mitsuba's are what they are there. Absorption lowers the weight of paths instead of ending them.

        ``mi.render(scene, params)`` is differentiable in reverse mode by path replay (Vicini et al. 2021), as with
        ``prbvolpath``: weights of the media's networks, and parameters of other media, phase functions, materials and
        emitters. Geometry is not. Weight gradients go through :func:`coopnet.gradient_banks`.

        As a plugin it is called ``neural_volpath``, with the arguments but ``key`` as properties.

        Args:
            max_depth: longest path, in edges; collisions that scatter nothing are not counted. -1 for any.
            rr_depth: number of edges after which Russian roulette may end paths.
            hide_emitters: leave out the emitters that the camera sees directly, and show black in their place.
            banks: accumulators of each network's weight gradients on CUDA (see :func:`coopnet.gradient_banks`); 0
                chooses by the number of paths.
            key: turns dropout of all neural media on. Without an index, every path has masks of its own, the same at
                all of its collisions; with one it is used as it is.

        Raises:
            TypeError, ValueError: arguments of other kinds and values.
            RuntimeError: derivatives in forward mode.

        >>> image = mi.render(scene, integrator=cn.mitsuba.NeuralVolpath(max_depth=16))
        """

        key = keys.of_paths

        def __init__(
            self, max_depth: int = -1, rr_depth: int = 5, hide_emitters: bool = False, banks: int = 0,
            key: Key | None = None, properties: Any = None,
        ):  # fmt: skip
            where = "NeuralVolpath"
            check_unpolarized(where)
            check_int(where, "max_depth", max_depth, -1, 2**31 - 1, "-1 or an int from 0 on")
            check_int(where, "rr_depth", rr_depth, 1, 2**31 - 1, "an int from 1 on")
            check_flag(where, "hide_emitters", hide_emitters)
            check_int(where, "banks", banks, 0, MOST, f"an int from 0 to {MOST}")
            properties = mi.Properties() if properties is None else properties
            properties["max_depth"], properties["rr_depth"] = max_depth, rr_depth
            properties["hide_emitters"] = hide_emitters
            super().__init__(properties)
            self.hide_emitters, self.banks = hide_emitters, banks
            self.key, self.call_targets = key, call_targets.pointers()

        def path_key(self, paths: int) -> Key | None:
            """``key``, with the number of a path as its index if it has none."""
            if self.key is None or self.key.index is not None:
                return self.key
            return Key(self.key.seed, dr.arange(mi.UInt32, paths), self.key.step)

        def sample(
            self, mode: Any, scene: Any, sampler: Any, ray: Any, δL: Any = None, state_in: Any = None,
            active: Any = True, **_: Any,
        ) -> tuple:  # fmt: skip
            forward = "NeuralVolpath: derivatives in forward mode are not possible; use dr.backward"
            ensure(mode != dr.ADMode.Forward, f"{forward}.", RuntimeError)
            keys.check_paths(self.key, dr.width(ray), "NeuralVolpath")
            return trace(self, SceneMedia(scene), mode, scene, sampler, ray, δL, state_in, active)

        def render_backward(
            self, scene: Any, params: Any, grad_in: Any, sensor: Any = 0, seed: Any = 0, spp: int = 0
        ) -> None:
            fields = [medium.field for medium in SceneMedia(scene).media]
            # Every turn of the loop is differentiated by itself, so that nothing would sum banks but this context.
            with gradient_banks(*fields, banks=self.banks or None) if fields else contextlib.nullcontext():
                super().render_backward(scene, params, grad_in, sensor, seed, spp)

        @property
        def longest(self) -> int:
            """``max_depth`` as it was given: -1 for any."""
            return self.max_depth if self.max_depth < 2**31 else -1

        def to_string(self) -> str:
            return f"NeuralVolpath[max_depth={self.longest}, rr_depth={self.rr_depth}]"

        def __reduce__(self) -> tuple:
            options = {name: getattr(self, name) for name in ("rr_depth", "hide_emitters", "banks", "key")}
            return remade, ("NeuralVolpath", {"max_depth": self.longest, **options}, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """Make the plugin ``neural_volpath`` that a scene describes."""
            names = ("max_depth", "rr_depth", "hide_emitters", "banks")
            return cls(**given(properties, *names), properties=properties)

    return NeuralVolpath
