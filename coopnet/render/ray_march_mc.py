"""Mean and deviation of color and depth along rays, over draws of a radiance field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import drjit as dr

from ..field import NeuralField
from ..jit.kernel_parameters import kernel_parameter
from ..random.key import Key
from ..uncertainty.ensemble import moments, separate
from ..uncertainty.mc_dropout import check_draws, check_passes, each_once, over_passes
from .arguments import Rays
from .occupancy import OccupancyGrid
from .ray_march import March, ray_march

_WHERE = "ray_march_mc"


@dataclass(eq=False)
class MarchMoments:
    """The result of :func:`ray_march_mc` for each ray, over all passes; a Dr.Jit PyTree.

    Attributes:
        color, color_std: ``Array3f``, mean and standard deviation of the light that arrives.
        depth, depth_std: ``Float``, of the expected distance, not normalized, as in :class:`March`.
        transmittance: ``Float``, the mean share of the background that is seen.
        unmet: ``Float``, the square of the transmittance, which adds to the variance where rays pass through.
        variance: ``Float``, the variance of the color, as mean of its three components, plus ``unmet``.

    >>> found = cn.render.ray_march_mc(cn.ensemble([volume, volume]), o, d, 0.5, 3.5, 8, key=key, samples=2)
    >>> deviation_of_the_mean_distance = found.depth_std / (1 - found.transmittance)
    """

    color: Any
    color_std: Any
    depth: Any
    depth_std: Any
    transmittance: Any
    unmet: Any
    variance: Any


def ray_march_mc(
    field: NeuralField | Callable,
    o: Any,
    d: Any = None,
    near: Any = None,
    far: Any = None,
    steps: Any = None,
    *,
    key: Key,
    samples: int,
    density: str = "softplus",
    color: str = "sigmoid",
    occupancy: OccupancyGrid | None = None,
    termination: float = 0.0,
    background: Any = None,
    active: Any = True,
) -> MarchMoments:
    r"""Mean and standard deviation of color and expected depth along rays, over draws of a radiance field: dropout
    masks, parameters or displacements (:func:`coopnet.laplace`), or members (:func:`coopnet.ensemble`).

    .. math::
        \mu = \frac1n \sum_{i<n} C_i, \qquad \sigma = \sqrt{\frac1n \sum_{i<n} (C_i - \mu)^2}, \qquad C_i =
        \mathrm{ray\_march}(\mathrm{field}, \mathrm{key.fold\_in}(\mathrm{key.step} \cdot n + i))

    and the same for depths :math:`D_i` and transmittances :math:`T_i`. All rays of a pass see one function, and all
    passes have the same samples on a ray, so that only the field differs.

    If all passes agree that a place is empty, deviations are zero, also if no camera has ever seen it. So the
    variance of a color gets one more term, the square of the transmittance (Sünderhauf et al. 2023,
    *Density-aware NeRF Ensembles*),

    .. math::
        v = \frac13 \sum_{c} \sigma_c^2 + (1 - \bar\alpha)^2, \qquad 1 - \bar\alpha = \frac1n \sum_{i<n} T_i ,

    with the mean accumulated opacity :math:`\bar\alpha`. It is meant for closed scenes, such as rooms. If rays may
    leave the scene, it is also large for those.

    All passes run in one kernel, a symbolic loop with running moments, as in :func:`coopnet.mc_dropout`. Members of an
    ensemble with nothing else to draw are each marched once, if ``samples`` is a multiple of their number.

    Args:
        field: as in :func:`ray_march`, with something that a key draws.
        o, d, near, far, steps: as in :func:`ray_march`.
        key: a :class:`coopnet.Key`; its index, if any, is that of all rays, or one for each; 0 if it has none.
        samples: number of passes :math:`n`, an int in [2, 2^24].
        density, color, occupancy, termination, background, active: as in :func:`ray_march`.

    Returns:
        A :class:`coopnet.render.MarchMoments`. Derivatives do not pass.

    Warns:
        RuntimeWarning: once, for a field with a grid whose features are not drawn; see :func:`coopnet.mc_dropout`.

    Raises:
        TypeError, ValueError: as :func:`ray_march`; a field that draws nothing; ``key`` is not a :class:`coopnet.Key`;
            ``samples`` out of range.

    >>> members = cn.ensemble([volume, volume])
    >>> found = cn.render.ray_march_mc(members, o, d, 0.5, 3.5, 8, key=cn.Key(0), samples=2)
    >>> trusted = found.variance < 0.01
    """
    samples = check_passes(_WHERE, key, samples)
    if isinstance(field, NeuralField):
        check_draws(_WHERE, field)
    options: dict[str, Any] = dict(
        density=density, color=color, occupancy=occupancy, termination=termination, background=background, active=active
    )

    def march(field: Any, key: Key | None) -> list:
        marched: March = ray_march(
            field, o, d, near, far, steps, key=key, jitter=False, dropout="ray", mode="loop", **options
        )
        return [*marched.color, marched.depth, marched.transmittance]

    with dr.suspend_grad():
        rays = Rays(o, d, "ray_march", field, None if occupancy is None else occupancy.bits)
        if isinstance(field, NeuralField) and each_once(field, samples):
            mean, deviation = moments([march(member, None) for member in separate(field)])
        else:
            uint32 = dr.uint32_array_t(rays.leaf)
            index = kernel_parameter(uint32, 0) if key.index is None else key.index
            drawn = Key(key.seed, index, key.step).traced(uint32)
            count = kernel_parameter(uint32, samples)
            first = drawn.step * count
            mean, deviation = over_passes(lambda i: march(field, drawn.fold_in(first + i)), count, rays.leaf)
        *rgb, depth, transmittance = mean
        *rgb_std, depth_std, _ = deviation
        unmet = dr.square(transmittance)
        variance = sum(dr.square(s) for s in rgb_std) * (1 / 3) + unmet
    return MarchMoments(rays.point(rgb), rays.point(rgb_std), depth, depth_std, transmittance, unmet, variance)
