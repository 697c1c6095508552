"""Soft visibility: silhouettes that can be differentiated."""

from __future__ import annotations

from typing import Any

import drjit as dr

from ..checks import check_type
from ..random.key import Key
from .arguments import Rays
from .sphere_trace import SurfaceHit
from .surface import Surface


def soft_visibility(
    sdf: Any, o: Any, d: Any = None, traced: Any = None, width: Any = None, *, key: Key | None = None,
    active: Any = True,
) -> Any:  # fmt: skip
    r"""How much of a surface rays see, between 0 and 1, so that a loss on masks has gradients.

    .. math::
        V = \mathrm{sigmoid}\left(-\frac{1}{w} \min_t f(o + t d)\right)

    (Yariv et al. 2020, *Multiview Neural Surface Reconstruction by Disentangling Geometry and Appearance*, eq. 7, with
    :math:`\alpha = 1/w`). It is 1/2 where a ray just touches the surface, and differs from the hard mask by less than
    0.01 beyond five widths on both sides. At a minimum the derivative along the ray is zero, so the gradient is that of
    :math:`f` at the place ``traced.closest``, with respect to the parameters of ``sdf``, ``o`` and ``d`` (the envelope
    theorem). This takes one evaluation, in the kernel that traces.

    Args:
        sdf, o, d: as in the call of ``sphere_trace``.
        traced: the result of ``sphere_trace(..., silhouette=width)``. Without ``silhouette``, rays that hit have a
            visibility of only 1/2, because the search ended at the hit.
        width: :math:`w`, in units of ``sdf``: a positive number, or a ``Float``, one or one for each ray. About the
            size of a pixel where the surface is; wider at the beginning of an optimization, so that more rays see it.
        key, active: as in the call of ``sphere_trace``; masked rays see 0.

    Returns:
        ``Float``; 0 for rays that are masked, not finite or have an empty interval.

    Raises:
        ValueError, TypeError: as :func:`coopnet.render.sphere_trace`; also if ``traced`` has another type.

    >>> traced = cn.render.sphere_trace(sdf, o, d, t_max=4, silhouette=0.02)
    >>> seen = cn.render.soft_visibility(sdf, o, d, traced, width=0.02)
    """
    where = "soft_visibility"
    check_type(where, "traced", traced, SurfaceHit, "a SurfaceHit from sphere_trace()")
    rays = Rays(o, d, where, traced.closest)
    width = rays.constant("width", width, positive=True)
    rays.number("traced", traced.closest)
    lives = rays.mask(active) & (traced.evaluations > 0)
    surface = Surface(sdf, key, rays.point, 1e-3, where)
    o, d = dr.select(lives, rays.o, 0), dr.select(lives, rays.d, 0)
    f = surface.value(rays.point(o + traced.closest * d), lives)
    return dr.select(lives, dr.rcp(1 + dr.exp(dr.clip(f / width, -80, 80))), 0)
