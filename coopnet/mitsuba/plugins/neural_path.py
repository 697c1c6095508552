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

        A virtual call returns the latent codes of materials. The decoders run in the body of the loop over
        bounces, where all lanes read the same weights, and lane numbers, which dropout needs, are known. Emitters and
        materials are sampled and combined by multiple importance sampling, with the random numbers of Mitsuba's
        ``path``: the same seed gives the same picture. Other materials are evaluated as usual, and so are neural ones
        inside other materials than ``twosided``.

        ``mi.render(scene, params)`` is differentiable in forward and reverse mode by path replay (Vicini et al. 2021),
        as with ``prb``, with respect to weights of decoders, latent codes, parameters of other materials and radiance
        of emitters. It is not differentiable with respect to geometry, nor through the sampling lobes. Weight gradients
        are summed by :func:`coopnet.gradient_banks`.

        The plugin is called ``neural_path``, and has the arguments except ``key`` as properties.

        Args:
            max_depth: longest path, in edges; 1 shows emitters only. -1, as in ``path``, for no limit: Russian roulette
                ends paths. Memory does not depend on their length, also for derivatives.
            rr_depth: number of edges after which Russian roulette may end paths.
            hide_emitters: leave out emitters that the camera sees directly.
            networks: which lanes evaluate which decoders. ``"branch"`` skips a decoder if none of the lanes that
                run together needs it. ``"mask"`` evaluates all decoders in all lanes. ``"call"`` evaluates them in one
                virtual call, and derivatives as ``"branch"``. ``"wavefront"`` follows all paths edge by edge, and
                evaluates each decoder for just the lanes that need it, in kernels of its own; that takes about a
                kilobyte for each path, and cannot be recorded. ``"auto"`` is the fastest (``docs/rendering.md``): on
                LLVM ``"branch"``; on CUDA ``"call"`` for pictures, and ``"wavefront"`` for derivatives of up to 2^24
                paths outside ``dr.freeze``.
            banks: accumulators of each decoder's weight gradients on CUDA (see :func:`coopnet.gradient_banks`); 0
                chooses by the number of paths. Tracing takes longer with more; ``dr.freeze`` saves that.
            key: turns dropout of all decoders on. Without an index, every vertex of every path draws its own masks: the
                index of vertex :math:`k` of path :math:`i` of :math:`N` is :math:`i + k N` modulo :math:`2^{32}`, where
                :math:`i` is pixel times samples per pixel plus sample. An index is used as it is: with ``index=0`` the
                whole picture sees one network, with ``index=dr.arange(UInt32, N)`` each path has its own.

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
            """Fields whose weight gradients are summed."""
            return [decoder.field for decoder in SceneDecoders(scene).decoders]

        def to_string(self) -> str:
            return f"NeuralPath[max_depth={self.longest}, rr_depth={self.rr_depth}, networks={self.networks!r}]"

        def __reduce__(self) -> tuple:
            options = {name: getattr(self, name) for name in ("rr_depth", "hide_emitters", "networks", "banks", "key")}
            return remade, ("NeuralPath", {"max_depth": self.longest, **options}, self.id())

        @classmethod
        def from_properties(cls, properties: Any) -> Any:
            """The plugin ``neural_path`` of a scene description."""
            names = ("max_depth", "rr_depth", "hide_emitters", "networks", "banks")
            return cls(**given(properties, *names), properties=properties)

    return NeuralPath
