"""A field of the light that leaves the surfaces of a scene."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import mitsuba as mi

from ...checks import check, check_above, check_flag, check_int, check_type, check_unsigned, ensure, is_number
from ...field import NeuralField
from ...io import load, read, save
from ...io.files import file_name
from ...nn import MLP, Composite, HashGrid, Identity, OneBlob, SphericalHarmonics
from ...random.key import Key
from ...training import FitResult
from .. import variants
from ..fields import check_field
from .short_paths import LONGEST, Ending
from .surface import INPUTS, Box, SurfaceRadiance
from .training import Training

_WHERE = "RadianceCache"
FEATURES = sum(INPUTS.values())
#: Arguments that a file keeps beside the field.
_KEPT = ("factored", "scale")


def default_field() -> NeuralField:
    """A field for a room or an object: a hash grid of 6 levels, from 8 to 113 cells a side, and a small network."""
    grid = HashGrid(3, n_levels=6, hashmap_size=2**16, base_resolution=8, per_level_scale=1.7)
    parts = [grid, SphericalHarmonics(3), SphericalHarmonics(2), OneBlob(4), Identity()]
    encoding = Composite(parts, [3, 3, 3, 1, 6])
    return NeuralField(encoding, MLP(out_features=3, width=32, depth=2), in_features=FEATURES)


class RadianceCache:
    r"""A neural radiance cache (Müller et al. 2021, *Real-time Neural Radiance Caching for Path Tracing*).

    A field maps a point of a surface, the direction it is seen from and its material to the radiance that is scattered
    in that direction. Radiance that the surface emits itself is not included:

    .. math:: L_s(x, \omega_o) = \int f(x, \omega_o, \omega_i)\, L_i(x, \omega_i)\, |\cos\theta_i|\, d\omega_i
        \approx s\, \rho(x) \max(0, \mathrm{field}(\mathrm{inputs}))

    with the ``scale`` :math:`s`. If ``factored``, :math:`\rho` is the reflectance of surfaces that are purely diffuse
    (1 for all others), so that their textures need not be learned.

    The 16 inputs, all in [0, 1], are those of the paper's table 1: position in the scene's bounding box (3),
    direction to the viewer (3), shading normal (3), roughness :math:`1 - e^{-r}` (1), diffuse reflectance (3) and
    specular reflectance (3). Directions are unit vectors as :math:`(v + 1) / 2` here, and pairs of angles in the paper.

    Args:
        scene: a ``mi.Scene`` of surfaces with at least one sensor. Media are ignored.
        field: a built :class:`NeuralField` of 16 inputs and 3 outputs, or ``None`` for a hash grid of the position,
            spherical harmonics of the direction, and a network with two hidden layers of 32 units.
        factored: see above.
        scale: radiance that an output of 1 stands for, in the unit of the scene. Choose that of a typical surface:
            errors of radiances below a tenth of it count less in the loss.
        average: decay of the moving average of the weights, in [0, 1). Pictures and training paths use the averaged
            weights. The paper, where training never stops, has 0.99. With a smaller decay, the average forgets the
            first weights sooner, which give too dark pictures.
        seed: of the initial weights and of all random numbers of the training.

    Raises:
        TypeError: ``scene`` or ``field`` has another type.
        ValueError: a field that is not built, has other widths or is on another backend than the variant's; numbers
            out of range; a scene without sensor, or without a surface.
        RuntimeError: no variant is set, or one in which fields do not run.

    >>> cache = cn.mitsuba.RadianceCache(scene)
    >>> cache.train(500)
    >>> image = mi.render(scene, integrator=cache.integrator(), spp=16)
    """

    def __init__(
        self, scene: Any, field: NeuralField | None = None, *, factored: bool = True, scale: float = 1.0,
        average: float = 0.95, seed: int = 0,
    ):  # fmt: skip
        variants.check_rgb(_WHERE)
        backend = variants.backend(_WHERE)
        check_type(_WHERE, "scene", scene, mi.Scene, "a mi.Scene of the variant that is set")
        ensure(scene.sensors(), f"{_WHERE}: the scene has no sensor, from which the paths of the training start.")
        box = Box.from_scene(scene, _WHERE)
        check_flag(_WHERE, "factored", factored)
        scale = check_above(_WHERE, "scale", scale)
        check(is_number(average) and 0 <= average < 1, _WHERE, "average", average, "a number in [0, 1)")
        seed = check_unsigned(_WHERE, "seed", seed)
        if field is None:
            field = default_field().build(backend, seed=seed)
        check_field(field, _WHERE, (FEATURES,), (3,))
        self.scene, self.field, self.averaged = scene, field, copy.deepcopy(field)
        self.output = SurfaceRadiance(box, factored, scale)
        self._training = Training(scene, field, self.averaged, self.output, average, seed)

    # ---- training -----------------------------------------------------------

    def train(
        self, steps: int, *, lr: float | Callable[[int], float] = 1e-2, samples: int = 2**14, vertices: int = 3,
        tail: int = 3, sensor: int = 0,
    ) -> FitResult:  # fmt: skip
        r"""Train for ``steps`` more steps; may be called again, and continues as if it had not stopped.

        A step traces ``samples`` paths from the sensor. On each path, one vertex that is not a mirror is chosen, the
        first to the ``vertices``-th equally often, and its scattered light is learned. The target is the radiance that
        the rest of the path brings there: emitters are sampled at each of its vertices, and after ``tail`` of them the
        cache itself, with averaged weights, adds the rest. So light spreads by one bounce or more with every step, and
        paths stay short (section 3.2 of the paper). The loss is the relative :math:`L_2` loss by luminance,

        .. math:: \frac{(y - t)^2}{\mathrm{lum}(y)^2 + 0.01}

        whose denominator is not differentiated, with radiances in units of ``scale``; the optimizer is Adam. Step
        :math:`i` draws all its numbers, and the masks of the field's dropouts, from ``(seed, i)``. The step is frozen:
        the first call records it, and others with the same settings replay it, also after the scene's parameters were
        changed (``mi.traverse``). After the first changes of each kind it may be recorded once more.

        Args:
            steps: number of steps to take, at least 0.
            lr: learning rate, or a function of the number of the step since the cache was made.
            samples: paths per step.
            vertices: see above. With 1, only surfaces that the sensor sees directly are learned, and not those where
                longer paths end.
            tail: vertices of the rest of a path, at least 1. With more, less of the cache's own error enters the
                targets, and light spreads by more bounces in a step, but noise and cost are larger. With rough glass,
                where short tails lose light, take 6 to 16, or a larger field.
            sensor: number of the sensor in the scene.

        Returns:
            The :class:`FitResult` of all steps since the cache was made. Ctrl-C ends the training early, with
            ``stopped="interrupt"``.

        Raises:
            ValueError, TypeError: arguments out of range.

        Warns:
            RuntimeWarning: the training diverged; the weights are the last that were finite.

        >>> cache.train(500)
        >>> cache.train(100, lr=1e-3)
        """
        where = f"{_WHERE}.train"
        steps = check_int(where, "steps", steps, 0)
        samples, vertices, tail = (
            check_int(where, name, value, 1, 2**24 if name == "samples" else LONGEST)
            for name, value in (("samples", samples), ("vertices", vertices), ("tail", tail))
        )
        sensor = check_int(where, "sensor", sensor, 0, len(self.scene.sensors()) - 1)
        return self._training.run(steps, lr, (samples, vertices, tail, sensor))

    def reset(self) -> None:
        """Go back to the weights that the cache was made with, to learn another scene in the old one's place.

        Recorded steps are kept, so further training compiles nothing. After the first reset a step may be recorded once
        more, because some of its inputs were not evaluated when the cache was made.

        >>> cache.reset()
        """
        self._training.reset()

    @property
    def steps(self) -> int:
        """Number of training steps taken."""
        return self._training.steps

    # ---- use ----------------------------------------------------------------

    def radiance(self, si: Any, active: Any = True, key: Key | None = None) -> Any:
        """The radiance scattered at the surface interaction ``si`` towards ``si.wi``, a ``mi.Color3f``.

        It has the unit of the scene and no emission: add ``si.emitter(scene).eval(si)``. Where ``active`` is false or
        nothing was hit it is 0. The weights are the averaged ones; ``key`` turns the field's dropouts on.

        >>> light = cache.radiance(scene.ray_intersect(ray))
        """
        return self.output(self.averaged, si, active, key)

    def integrator(
        self, vertices: int = 1, *, spread: float | None = None, max_depth: int = LONGEST, hide_emitters: bool = False
    ) -> Any:
        """An integrator whose paths end in the cache, for ``mi.render(scene, integrator=...)``.

        Emitters are sampled at every vertex before the last, and directly visible ones are exact. The cache is
        evaluated once per path, after the loop and outside of virtual calls. Derivatives do not pass.

        Args:
            vertices: a path ends after so many vertices that are not mirrors, at the next one. With 0, the cache is
                evaluated at the first: there is only the noise of the pixel's filter, and the whole error of the cache
                is visible. With 1, paths gather light over one bounce, which hides most of the error.
            spread: in place of ``vertices``, the constant :math:`c` of the paper's criterion, 0.01 there (see
                :class:`Ending`).
            max_depth: largest number of segments of a path, for paths between mirrors; longer paths are cut.
            hide_emitters: leave directly visible emitters out, as in Mitsuba's integrators.

        Raises:
            ValueError: arguments out of range.

        >>> image = mi.render(scene, integrator=cache.integrator(spread=0.01), spp=4)
        """
        where = f"{_WHERE}.integrator"
        vertices = check_int(where, "vertices", vertices, 0, LONGEST)
        if spread is not None:
            spread = check_above(where, "spread", spread)
        max_depth = check_int(where, "max_depth", max_depth, 1)
        check_flag(where, "hide_emitters", hide_emitters)
        made = variants.made("RadianceCacheIntegrator")
        return made(self.averaged, self.output, Ending(vertices, spread), max_depth, hide_emitters)

    # ---- files --------------------------------------------------------------

    def __reduce__(self) -> Any:
        hint = "use save(path) and load(path, scene), or copy its field"
        raise TypeError(f"{_WHERE}: a cache cannot be copied or pickled, since its scene cannot; {hint}.")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the averaged field and the arguments of the cache with :func:`coopnet.save`; raises as that.

        >>> cache.save("cache.safetensors")
        """
        save(path, self.averaged, metadata={"radiance_cache": {name: getattr(self.output, name) for name in _KEPT}})

    @classmethod
    def load(cls, path: str | os.PathLike[str], scene: Any, **options: Any) -> RadianceCache:
        """The cache of a scene that was written by :meth:`save`, to render with or to train on.

        Args:
            path: the file.
            scene: the scene it belongs to: the file does not hold it, and its bounding box must be the same.
            options: further arguments of the class.

        Raises:
            ValueError: the file does not hold a radiance cache; otherwise as :func:`coopnet.load`.

        >>> cache = cn.mitsuba.RadianceCache.load("cache.safetensors", scene)
        """
        backend = variants.backend(f"{_WHERE}.load")
        kept = read(path).metadata.get("radiance_cache")
        if not isinstance(kept, dict) or set(kept) != set(_KEPT):
            name = file_name(path, _WHERE)
            raise ValueError(f"{_WHERE}.load: {name!r} holds a field, but not that of a radiance cache.")
        return cls(scene, load(path, backend), **{**kept, **options})
