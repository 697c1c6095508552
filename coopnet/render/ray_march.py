"""Radiance fields along rays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check, check_choice, check_flag, check_int, check_number, check_type, ensure, entries
from ..checks.sizes import MAX_ENTRIES
from ..field import NeuralField
from ..jit.kernel_parameters import kept
from ..jit.scopes import suspended, symbolic
from ..nn import Module
from ..random.key import Key, check_key
from .arguments import Rays
from .march_loop import Marcher
from .march_replay import march_replay
from .march_wide import march_wide
from .occupancy import OccupancyGrid
from .parameters import ModuleParameters
from .radiance import Radiance
from .rays import SampledRays

MODES = ("auto", "loop", "replay", "wide")
#: Ways to draw dropout masks: for every sample, for every ray, or none.
MASKS = ("sample", "ray", "off")
#: Most steps of a march.
MAX_STEPS = 1 << 20
#: Steps that Dr.Jit keeps of a loop to differentiate it backwards: the longest array that a thread can have.
KEPT = 1 << 16
#: Samples that ``"auto"`` puts into one batch at most.
WIDE = 1 << 24


@dataclass(eq=False)
class March:
    """The result of :func:`ray_march` for each ray; a Dr.Jit PyTree.

    Attributes:
        color: ``Array3f``, the light that arrives, background included.
        transmittance: ``Float``, the share of the background's light that arrives.
        depth: ``Float``, the expected distance, not normalized: divide by ``1 - transmittance`` for the mean distance
            at which the ray is absorbed.

    >>> mean_distance = seen.depth / (1 - seen.transmittance)
    """

    color: Any
    transmittance: Any
    depth: Any


def ray_march(
    field: NeuralField | Callable,
    o: Any,
    d: Any = None,
    near: Any = None,
    far: Any = None,
    steps: Any = None,
    *,
    key: Key | None = None,
    jitter: bool = True,
    dropout: str = "sample",
    density: str = "softplus",
    color: str = "sigmoid",
    occupancy: OccupancyGrid | None = None,
    termination: float = 0.0,
    background: Any = None,
    mode: str = "auto",
    active: Any = True,
    parameters: Any = None,
) -> March:
    r"""Emitted and absorbed light along rays :math:`o + t d`, :math:`t` from ``near`` to ``far``.

    The range is cut into ``steps`` bins of length :math:`\Delta` with a sample each
    (:class:`coopnet.render.rays.SampledRays` has its law). With density :math:`\sigma_i` and color :math:`c_i` there
    (Max 1995; Mildenhall et al. 2020, eq. 3),

    .. math:: C = \sum_i w_i c_i + T b, \quad w_i = T_i (1 - e^{-\sigma_i \Delta}), \quad
              T_i = e^{-\sum_{j<i} \sigma_j \Delta}, \quad D = \sum_i w_i t_i .

    All three modes give the same result, up to rounding: values, gradients, and dropout masks to the bit.

    ============  =====================================================================================================
    ``"loop"``    one symbolic loop, one kernel; Dr.Jit differentiates it, in reverse mode with memory for every step
    ``"replay"``  the same loop; gradients walk along the ray again, in memory that does not depend on ``steps``
    ``"wide"``    all samples in one batch, then a walk over them in memory: the fastest training, in memory for every
                  sample
    ``"auto"``    ``"loop"`` where no gradient is needed or a symbolic loop, conditional or call is being traced;
                  otherwise ``"wide"`` for up to 2^24 samples, or if tables or grids in half precision are trained, and
                  ``"replay"`` beyond. Of traced code without
                  ``parameters``, no gradient is needed only within ``dr.suspend_grad()``, and there is no replay
    ============  =====================================================================================================

    Args:
        field: a built :class:`NeuralField` with 4 outputs, density and color before ``density`` and ``color`` are
            applied (so leave ``output_activation`` out), and 3 inputs, the position, or 6, the position and ``d`` as it
            is given. Or traced code ``(p, d, key, active) -> (density, color)``, where ``p`` and ``d`` are an
            ``Array3f``, ``key`` is a :class:`Key` or ``None``, and ``active`` a mask.
        o, d: origins and directions: ``Array3f`` or anything else with 3 components that a field takes; three numbers
            or rows of them, also as a NumPy array of shape (3,) or (3, rays), rounded to single precision. One of each
            or one for each ray. Or ``o`` is a ray such as ``mi.Ray3f``, and ``d`` left out. Rays of numbers are on the
            backend of ``field`` if that is a field. Distances count lengths of ``d``.
        near, far: a number, a row of numbers or a ``Float``, one or one for each ray. Rays with ``far <= near`` see
            only the background.
        steps: number of bins, at most 2^20. Kernels read it: another number compiles nothing new, but for gradients of
            ``"loop"``.
        key: draws the jitter and turns on dropout; its index identifies the rays.
        jitter: with a key, move samples within their bins; else they lie in the middle.
        dropout: with a key, ``"sample"`` for a mask at every sample (step ``key.step * steps + i`` of the key, modulo
            2^32), ``"ray"`` for one along each ray (step ``key.step``; one network for the whole image with
            ``Key(seed, index=0)``), ``"off"`` for none.
        density: activation that turns the raw output into a density: ``"softplus"``, ``"exp"`` (of at most 15),
            ``"relu"`` or ``"none"``. Densities are per unit of :math:`t`.
        color: the same for colors: ``"sigmoid"``, ``"softplus"``, ``"exp"``, ``"relu"`` or ``"none"``.
        occupancy: an :class:`OccupancyGrid`; samples in its empty cells, and outside of it, count as density 0 and are
            not evaluated (in ``"wide"``, inside ``dr.freeze``, evaluated but not counted).
        termination: a ray ends when its transmittance is at most this; 0 for never. Samples beyond are left out,
            which changes colors by at most this share of theirs. Gradients treat the end of a ray as constant.
        background: :math:`b`: a number or a ``Float``, three of them, or a color as ``o``; ``None`` for black.
        mode: see above.
        active: a bool or a ``Bool``. Rays where it is false, and those whose origin, direction, ``near`` or ``far`` is
            not finite, are not marched: everything returned for them is 0, and they contribute to no gradient.
        parameters: with ``mode="replay"`` and traced code, the :class:`Module` s whose parameters get gradients: one,
            or a list.

    Returns:
        A :class:`March` with ``color``, ``transmittance`` and ``depth``, differentiable with respect to the field's
        parameters, ``o``, ``d``, ``near``, ``far`` and ``background``, in forward and reverse mode.

    Raises:
        TypeError, ValueError: arguments of other kinds or out of range, a field that is not built or has another number
            of inputs or outputs.
        RuntimeError: ``"wide"``, or ``"replay"`` with gradients, inside a symbolic loop, conditional or call;
            ``"replay"`` with gradients of half-precision tables or grids.

    >>> seen = cn.render.ray_march(volume, o, d, 0.5, 3.5, steps=64, key=key, background=1)
    >>> loss = dr.mean(dr.squared_norm(seen.color - 0.5))
    """
    where = "ray_march"
    steps = check_int(where, "steps", steps, 1, MAX_STEPS)
    check_key(where, key)
    check_flag(where, "jitter", jitter)
    check_choice(where, "dropout", dropout, MASKS)
    check_choice(where, "mode", mode, MODES)
    check_type(where, "occupancy", occupancy, OccupancyGrid | None, "an OccupancyGrid or None")
    termination = check_number(where, "termination", termination, 0)
    check(termination < 1, where, "termination", termination, "a number in [0, 1)")
    radiance = Radiance(field, density, color, where)
    networks = _networks(field, parameters, mode, where)
    checked = Rays(o, d, where, field, None if occupancy is None else occupancy.bits)
    rays, alive = SampledRays.of(checked, near, far, steps, key, jitter, dropout, active)
    if occupancy is not None:
        occupancy.check_backend(rays.float32, where)
    behind = None if background is None else checked.three("background", background)
    marcher = Marcher(radiance, occupancy, kept(checked.leaf(termination)))
    mode = _mode(mode, networks, rays, where)
    if mode == "wide":
        sums = march_wide(marcher, rays)
    else:
        radiance.probe(rays.float32, rays.key(rays.uint32(0)))
        if mode == "replay":
            assert networks is not None  # or _networks() has raised
            sums = march_replay(marcher, rays, networks)
        else:
            sums = marcher.march(rays, max_iterations=min(steps, KEPT))
    *colors, depth, transmittance = (dr.select(alive, v, 0) for v in sums)
    colors = colors if behind is None else [c + transmittance * v for c, v in zip(colors, behind, strict=True)]
    return March(checked.point(colors), transmittance, depth)


def _networks(field: Any, parameters: Any, mode: str, where: str) -> ModuleParameters | None:
    """The networks that the march depends on, or ``None`` if they are not known, as for traced code."""
    if isinstance(field, NeuralField):
        check(parameters is None, where, "parameters", parameters, "None, the field having its own,")
        return ModuleParameters([field])
    if parameters is None:
        unknown = "parameters is None, but field is traced code; the modules that it evaluates, or [],"
        ensure(mode != "replay", f"{where}: {unknown} are needed in mode 'replay'.")
        return None
    modules = [parameters] if isinstance(parameters, drnn.Module) else entries(where, "parameters", parameters)
    for i, module in enumerate(modules):
        check_type(where, f"parameters[{i}]", module, Module, "a coopnet Module")
    return ModuleParameters(list({id(m): m for m in modules}.values()))


def _mode(mode: str, networks: ModuleParameters | None, rays: SampledRays, where: str) -> str:
    """The mode for the argument ``mode``; raises if it is not possible."""
    # traced code may depend on unknown parameters
    possible = not suspended(rays.float32) if networks is None else networks.wanted()
    wanted = possible or dr.grad_enabled(rays.geometry)
    n = dr.width(rays.dt)
    if mode == "auto":
        if symbolic() or not wanted:
            return "loop"
        return "replay" if n * rays.steps > WIDE and networks is not None and not networks.half_tables() else "wide"
    inside = "inside a symbolic loop, conditional or call; use mode='loop' there"
    ensure(mode != "wide" or not symbolic(), f"{where}: mode is 'wide' {inside}.", RuntimeError)
    if mode == "replay" and not wanted:
        return "loop"
    hint = "use mode='replay', or dr.suspend_grad() if none are needed"
    long = f"steps is {rays.steps}; in mode 'loop', gradients take at most {KEPT}; {hint}"
    ensure(mode != "loop" or not wanted or rays.steps <= KEPT, f"{where}: {long}.")
    halves = mode == "replay" and networks is not None and networks.half_tables()
    sums = f"{where}: mode is 'replay', which sums gradients inside a loop, where those of half-precision tables stall"
    ensure(not halves, f"{sums}; use mode='wide', or grids and tables with precision='single'.", RuntimeError)
    differentiated = mode == "replay" and symbolic()
    ensure(not differentiated, f"{where}: mode is 'replay' with gradients {inside}.", RuntimeError)
    samples = f"{n} rays of {rays.steps} steps make {n * rays.steps} samples"
    valid = mode != "wide" or n * rays.steps <= MAX_ENTRIES
    ensure(valid, f"{where}: {samples}; mode 'wide' takes fewer than 2^32.")
    return mode
