"""The loop of sphere tracing: no gradients, distances in units of the ray's parameter ``t``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import drjit as dr

from .surface import Surface

#: A ray is well inside, its soft visibility 0.993, where the distance is below so many widths.
INSIDE = -5.0
#: Refinement of a hit ends within this fraction of eps.
FINE = 0.01
#: By which fraction of itself half precision rounds a coordinate on average: half of the most, which is 2^-11.
HALF = 2.0**-12
#: Steps along the slope that refine the place of the smallest distance.
POLISH = 4


@dataclass
class Limits:
    """The rays, and how to trace them. ``near``, ``fine`` and ``width`` are in units of ``t``, ``scale`` turns ``sdf``
    into those. Samples below ``near`` are refined, and those of at most ``fine`` are on the surface. ``rounding``, for
    half precision, is by how much a coordinate of 1 is rounded: nothing finer is looked for.
    """

    o: Any
    d: Any
    start: Any
    end: Any
    near: Any
    fine: Any
    rounding: Any
    scale: Any
    width: Any
    steps: Any
    bisections: Any
    relaxation: Any

    def at(self, t: Any) -> Any:
        return self.o + t * self.d

    def fine_at(self, t: Any) -> Any:
        """The largest distance of samples at ``t`` that are on the surface."""
        if self.rounding is None:
            return self.fine
        return dr.minimum(self.near, dr.maximum(self.fine, self.rounding * dr.max(abs(self.at(t)))))


@dataclass
class FoundHit:
    """The state of the rays between two evaluations: the variables of the loop.

    A ray is *free* until it is near the surface or has crossed it. Then its hit is refined: if it has *crossed*,
    between ``t0`` in front of the surface and ``t1`` behind it, otherwise by extrapolation of two samples in front.
    Then it is done, or goes on *behind* its hit. If the extrapolation finds no surface, the ray grazes it: it is free
    again, without ``left`` steps until it has gone away from the surface or crosses it.
    """

    active: Any
    free: Any
    crossed: Any
    hit: Any
    inside: Any  # did it start inside? Then distances are negative in front of the surface
    evaluations: Any
    left: Any  # steps of refinement; none where the ray grazes
    t: Any  # where it is evaluated next
    t0: Any  # in front of the surface, at distance r0
    r0: Any
    t1: Any  # behind it, at distance r1
    r1: Any
    last: Any  # was the last sample of a refinement behind?
    relaxation: Any
    t_hit: Any  # of refined samples, the one next to the surface, at distance r_hit
    r_hit: Any
    closest: Any  # of all samples, the one with the smallest distance
    smallest: Any


def trace(surface: Surface, limits: Limits, active: Any) -> FoundHit:
    """Trace the rays, and refine the place of the smallest distance if there is a width."""
    leaf = surface.leaf
    mask, uint32 = dr.mask_t(leaf), dr.uint32_array_t(leaf)
    lanes = dr.width(active)

    def full(value: Any, tp: type = leaf) -> Any:
        return dr.full(tp, value, lanes)

    start = limits.start + full(0)
    state = FoundHit(
        active=active & (start < limits.end), free=full(True, mask), crossed=full(False, mask), hit=full(False, mask),
        inside=full(False, mask), evaluations=full(0, uint32), left=limits.bisections + full(0, uint32), t=start,
        t0=leaf(start), r0=full(0), t1=leaf(start), r1=full(0), last=full(False, mask),
        relaxation=limits.relaxation + full(0), t_hit=leaf(start), r_hit=full(dr.inf), closest=leaf(start),
        smallest=full(dr.inf),
    )  # fmt: skip

    def body(s: FoundHit) -> tuple[FoundHit]:
        return (_iterate(s, surface.value(limits.at(s.t), s.active) * limits.scale, limits),)

    (state,) = dr.while_loop((state,), lambda s: s.active, body, label="coopnet: sphere_trace")
    if limits.width is not None:
        _polish(state, surface, limits, dr.isfinite(state.smallest))
    return state


def _iterate(s: FoundHit, f: Any, limits: Limits) -> FoundHit:
    """The state after an evaluation gave ``f`` at ``s.t``."""
    first = s.evaluations == 0
    inside = (first & (f < 0)) | (~first & s.inside)
    r, t = dr.select(inside, -f, f), s.t
    count = s.evaluations + 1
    below = f < s.smallest
    closest, smallest = dr.select(below, t, s.closest), dr.select(below, f, s.smallest)

    # ---- free: step by the distance, unless it reached the surface
    finite = dr.isfinite(r)
    free = s.free & ~s.hit & finite
    over = free & (s.relaxation > 1) & (abs(r) + s.r0 < t - s.t0)  # a gap between the balls: take the step back
    crosses = free & ~over & (r < 0)
    spent, ahead, on_surface = count >= limits.steps, t + s.relaxation * r, limits.fine_at(t)
    # a ray that grazes must come closer, onto the surface, unless its steps are spent or it cannot advance
    near = dr.select((s.left > 0) | spent | (ahead == t), limits.near, on_surface)
    arrives = free & ~over & ~crosses & (r < near)
    steps = free & ~over & ~crosses & ~arrives
    lost = (steps & (t + r > limits.end)) | (s.free & ~s.hit & ~finite)
    lost |= (over | steps) & spent
    onward = dr.minimum(ahead, limits.end)
    back = s.t0 + s.r0

    # ---- refined: between samples in front and behind, or by extrapolation of two in front
    refined = ~s.free & ~s.hit
    behind = r < 0
    again = refined & s.crossed & (behind == s.last)  # Illinois: the end that stays counts half
    r0 = dr.select(again & behind, 0.5 * s.r0, s.r0)
    r1 = dr.select(again & ~behind, 0.5 * s.r1, s.r1)
    reached = crosses | arrives
    better = (reached | refined) & (abs(r) <= s.r_hit)  # where the sign jumps, all places are equally good
    t_hit, r_hit = dr.select(better, t, s.t_hit), dr.select(better, abs(r), s.r_hit)
    t_old, r_old = s.t0, s.r0
    front = (steps | arrives | refined) & ~behind
    t0, r0 = dr.select(front, t, s.t0), dr.select(front, r, r0)
    back_end = crosses | (refined & behind)
    t1, r1 = dr.select(back_end, t, s.t1), dr.select(back_end, r, r1)
    crossed = s.crossed | back_end
    # the secant is at most fifty distances long: a ray that grazes the surface does not approach it by much
    far = t - t_old
    fall = dr.select(crossed, r0 - r1, dr.maximum(r_old - r, 0.02 * far))
    rise = dr.select(crossed, (t1 - t0) * r0, far * r)
    guess = dr.minimum(dr.select(crossed, t0, t) + rise / fall, limits.end)
    left = dr.select(crosses | (steps & (r >= limits.near)), limits.bisections, s.left)
    left = dr.select(refined & (r_hit < limits.near), left - 1, left)
    fine = (r_hit <= on_surface) | ~finite | (guess == t) | (count >= limits.steps + limits.bisections)
    fine |= arrives & first  # it started on the surface
    # the distance falls too slowly for a surface to be ahead
    grazes = refined & ~crossed & (r > 0.5 * s.r_hit) & ~fine & ~spent
    done = (reached | refined) & (fine | (left == 0)) & ~grazes
    hit = s.hit | done

    # ---- the next sample
    t_next = dr.select(over, back, dr.select(steps, onward, guess))
    t_next = dr.select(grazes, dr.minimum(t_hit + s.relaxation * r_hit, limits.end), t_next)
    active = s.active & ~lost
    if limits.width is None:
        active &= ~hit
    else:
        # behind its hit, a ray goes on until it is deep inside, for the smallest distance
        place = dr.select(done, t_hit, t)
        beyond = dr.minimum(place + dr.maximum(abs(f), 0.5 * limits.width), limits.end)
        t_next = dr.select(hit, beyond, t_next)
        deep = (smallest < INSIDE * limits.width) | (place >= limits.end) | (count >= limits.steps + limits.bisections)
        active &= ~(hit & (deep | ~finite))
    return FoundHit(
        active=active, free=(s.free & ~reached) | grazes, crossed=crossed, hit=hit, inside=inside, evaluations=count,
        left=dr.select(grazes, 0, left), t=t_next, t0=dr.select(grazes, t_hit, t0), r0=dr.select(grazes, r_hit, r0),
        t1=t1, r1=r1, last=behind, relaxation=dr.select(over, 1, s.relaxation), t_hit=t_hit,
        r_hit=dr.select(grazes, dr.inf, r_hit), closest=closest, smallest=smallest,
    )  # fmt: skip


def _polish(s: FoundHit, surface: Surface, limits: Limits, active: Any) -> None:
    """Move ``s.closest`` to where the slope along the ray is zero.

    At a convex surface, the foot of the nearest point lies one distance times the slope back. After that step, the
    secant through the last two slopes.
    """

    def body(i: Any, t: Any, t_old: Any, slope_old: Any, closest: Any, smallest: Any) -> tuple:
        f, slope = (v * limits.scale for v in surface.slope(limits.at(t), limits.d, active))
        below = f < smallest
        closest, smallest = dr.select(below | (i == 0), t, closest), dr.select(below, f, smallest)
        most = dr.maximum(abs(f), limits.width)
        curvature = (slope - slope_old) / (t - t_old)
        step = dr.select((i > 0) & (curvature > 0), slope / curvature, slope * most)
        step = dr.select(dr.isfinite(step), dr.clip(step, -most, most), 0)
        following = dr.clip(t - step, limits.start, limits.end)
        return i + 1, following, t, slope, closest, smallest

    zero, leaf = type(s.evaluations)(0), surface.leaf
    lanes = dr.zeros(leaf, dr.width(active))
    start = (zero, s.closest, s.closest + lanes, lanes, leaf(s.closest), leaf(s.smallest))
    out = dr.while_loop(start, lambda i, *_: active & (i < POLISH + 1), body, label="coopnet: closest approach")
    s.closest, s.smallest = dr.select(active, out[4], s.closest), out[5]
