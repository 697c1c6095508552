"""The integrator ``neural_path``."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ...checks import check_choice
from ...random.key import Key
from .. import keys, spectra
from ..path.loop import trace
from ..path.scene_decoders import WAYS, SceneDecoders
from ..variants import check_unpolarized, per_variant, remade
from .named_objects import given
from .path_replay import path_replay


@per_variant
def NeuralPath() -> type:
    class NeuralPath(path_replay()):  # type: ignore[misc]
        r"""A path tracer that evaluates the networks of :class:`NeuralBSDF` outside virtual calls.

        Materials are asked for their latent codes in a virtual call; the decoders run in the body of the loop over
        bounces, where all lanes read the same weights, and lane numbers (for dropout) exist. It samples emitters and
        materials, weighs them by multiple importance sampling, and draws the random numbers of Mitsuba's ``path``: with
        the same seed, it makes the same picture. Other materials are evaluated as always, and so are neural ones inside
        other materials than ``twosided``.

        ``mi.render(scene, params)`` is differentiable in forward and reverse mode by path replay (Vicini et al. 2021),
        as with ``prb``: weights of decoders, latent codes, parameters of other materials and radiance of emitters.
        Geometry is not, nor are the sampling lobes. Weight gradients go through :func:`coopnet.gradient_banks`.

        As a plugin it is called ``neural_path``, with the arguments but ``key`` as properties.

        Args:
            max_depth: longest path, in edges; 1 shows emitters only. -1, as in ``path``, for any: Russian roulette ends
                them, and memory does not depend on their length, derivatives included.
            rr_depth: number of edges after which Russian roulette may end paths.
            hide_emitters: leave out emitters that the camera sees directly.
            networks: how the evaluation of a network for lanes that do not need it is avoided. ``"branch"`` skips each
                decoder where none of the lanes that run together needs it; ``"mask"`` evaluates all decoders in all
                lanes; ``"call"`` evaluates them in one virtual call, and derivatives as ``"branch"``; ``"wavefront"``
                follows all paths edge by edge, and evaluates each decoder for just the lanes that need it, in kernels
                of its own, which takes about a kilobyte for each path and cannot be recorded. ``"auto"`` is the fastest
                (``docs/rendering.md``): on LLVM ``"branch"``; on CUDA ``"call"`` for pictures, and ``"wavefront"`` for
                derivatives outside ``dr.freeze`` of up to 2^24 paths.
            banks: accumulators of each decoder's weight gradients on CUDA (see :func:`coopnet.gradient_banks`); 0
                chooses by the number of paths. Each is traced by itself, which ``dr.freeze`` saves.
            key: turns dropout of all decoders on. Without an index, every vertex of every path draws its own masks: the
                index of vertex :math:`k` of path :math:`i` of :math:`N` is :math:`i + k N` modulo :math:`2^{32}`, where
                :math:`i` is pixel times samples per pixel plus sample. With one it is used as it is: ``index=0`` makes
                one network of the whole picture, ``index=dr.arange(UInt32, N)`` one of each path.

        Raises:
            TypeError, ValueError: arguments of other kinds and values. ``mi.render``: an index of another number of
                paths, which Dr.Jit passes on as the cause of a ``RuntimeError``.

        >>> image = mi.render(scene, integrator=cn.mitsuba.NeuralPath(max_depth=5))
        """

        def __init__(
            self, max_depth: int = -1, rr_depth: int = 5, hide_emitters: bool = False, networks: str = "auto",
            banks: int = 0, key: Key | None = None, properties: Any = None,
        ):  # fmt: skip
            where = "NeuralPath"
            check_unpolarized(where)
            check_choice(where, "networks", networks, WAYS)
            super().__init__(where, max_depth, rr_depth, hide_emitters, banks, key, properties)
            self.networks, self.upsampling = networks, spectra.table()

        def sample(
            self, mode: Any, scene: Any, sampler: Any, ray: Any, δL: Any = None, state_in: Any = None,
            active: Any = True, **_: Any,
        ) -> tuple:  # fmt: skip
            keys.check_paths(self.key, dr.width(ray), "NeuralPath")
            derivative = mode != dr.ADMode.Primal
            decoders = SceneDecoders(scene, self.networks, derivative, dr.width(ray), self.upsampling)
            return trace(self, decoders, mode, scene, sampler, ray, δL, state_in, active)

        def fields(self, scene: Any) -> list:
            """Those whose weight gradients are summed."""
            return [decoder.field for decoder in SceneDecoders(scene).decoders]

        def to_string(self) -> str:
            return f"NeuralPath[max_depth={self.longest}, rr_depth={self.rr_depth}, networks={self.networks!r}]"

        def __reduce__(self) -> tuple:
            options = {name: getattr(self, name) for name in ("rr_depth", "hide_emitters", "networks", "banks", "key")}
            return remade, ("NeuralPath", {"max_depth": self.longest, **options}, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """Make the plugin ``neural_path`` that a scene describes."""
            names = ("max_depth", "rr_depth", "hide_emitters", "networks", "banks")
            return cls(**given(properties, *names), properties=properties)

    return NeuralPath
