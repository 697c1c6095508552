"""Encodings of coordinates without parameters in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .layers import Function
from .random import Array, philox4x32


def identity(x: Array, scale: float = 1.0, offset: float = 0.0) -> Array:
    """scale x + offset, by default x itself, in double precision.

    >>> ref.identity(np.array([[0.25, 0.5]]), scale=2.0).tolist()
    [[0.5, 1.0]]
    """
    return np.asarray(x, np.float64) * scale + offset


def unit_cube(x: Array, low: Any, high: Any) -> Array:
    """(x - low) / (high - low) for each channel: the box between low and high, numbers or one for each, mapped to the
    unit cube.

    >>> ref.unit_cube(np.array([[-1.0], [4.0]]), [-2.0, 2.0], [2.0, 6.0]).ravel().tolist()
    [0.25, 0.5]
    """
    low, high = (np.asarray(side, np.float64).reshape(-1, 1) for side in (low, high))
    return np.asarray((np.asarray(x, np.float64) - low) / (high - low))


def frequency(x: Array, n_frequencies: int) -> Array:
    r"""For each channel, for each i: :math:`\sin(2^i \pi x)` and :math:`\cos(2^i \pi x)` (tiny-cuda-nn).

    >>> ref.frequency(np.array([[0.25]]), 2).round(3).ravel().tolist()
    [0.707, 0.707, 1.0, 0.0]
    """
    angle = 2 * np.pi * _octaves(x, n_frequencies, lowest=0.5)
    return _interleave(np.sin(angle), np.cos(angle))


def triangle_wave(x: Array, n_frequencies: int) -> Array:
    r"""For each channel, for each i: :math:`4 |\mathrm{frac}(2^{i-1} x + i/4) - 1/2| - 1` (tiny-cuda-nn).

    >>> ref.triangle_wave(np.array([[0.25]]), 2).ravel().tolist()
    [0.5, -1.0]
    """
    t = _octaves(x, n_frequencies, 0.25, 0.5)
    return np.asarray(4 * np.abs(t - np.floor(t) - 0.5) - 1).reshape(-1, t.shape[-1])


def one_blob(x: Array, n_bins: int, periodic: bool = True) -> Array:
    """For each channel, for each bin: the integral over it of a quartic kernel of radius 1 / n_bins around x.

    The kernel appears at x - 1, x and x + 1 (tiny-cuda-nn), where x is first brought to [0, 1) if it is periodic; its
    integral is a clamped polynomial.

    >>> ref.one_blob(np.array([[0.25]]), 4).round(3).ravel().tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    x = np.asarray(x, np.float64)
    x = x - np.floor(x) if periodic else x
    edges = np.arange(n_bins + 1)[:, None] / n_bins - x[:, None, :]
    total = np.zeros_like(edges)
    for shift in (-1, 0, 1):
        u = np.clip((edges + shift) * n_bins, -1, 1)
        total += 15 / 16 * (u - 2 / 3 * u**3 + 1 / 5 * u**5) + 1 / 2
    return np.asarray(np.diff(total, axis=1)).reshape(-1, edges.shape[-1])


def spherical_harmonics(x: Array, degree: int) -> Array:
    """Real spherical harmonics of v = 2 x - 1, bands 0 to degree - 1, with the Condon-Shortley phase.

    By the recurrence of the associated Legendre functions in z without their factor (1 - z^2)^(m/2), which belongs to
    the real and imaginary part of (v_x + i v_y)^m.

    >>> ref.spherical_harmonics(np.array([[0.5], [0.5], [1.0]]), 2).round(3).ravel().tolist()
    [0.282, -0.0, 0.489, -0.0]
    """
    v = 2 * np.asarray(x, np.float64) - 1
    z, azimuth = v[2], v[0] + 1j * v[1]
    y = np.zeros((degree**2, v.shape[1]))
    for m in range(degree):
        before = np.zeros_like(z)
        p = np.full_like(z, (-1.0) ** m * math.prod(range(1, 2 * m, 2)))  # P_m^m
        for band in range(m, degree):
            norm = math.sqrt((2 * band + 1) / (4 * math.pi) * math.factorial(band - m) / math.factorial(band + m))
            around = azimuth**m * (math.sqrt(2) if m else 1)
            y[band * band + band + m] = norm * p * around.real
            if m:
                y[band * band + band - m] = norm * p * around.imag
            before, p = p, ((2 * band + 1) * z * p - (band + m) * before) / (band - m + 1)
    return y


def fourier_frequencies(n: int, seed: int) -> Array:
    """n standard normal numbers: Box-Muller on Philox4x32, counter i for the numbers 2 i and 2 i + 1.

    The radius takes the upper 53 bits of words 0 (high) and 1, the angle word 2.

    >>> ref.fourier_frequencies(3, seed=0).round(3).tolist()
    [-0.122, -1.35, -0.082]
    """
    values = []
    for i in range((n + 1) // 2):
        a, b, c, _ = (int(w) for w in philox4x32((i, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32)))
        radius = math.sqrt(-2 * math.log((((a << 32 | b) >> 11) + 1) / 2**53))
        values += [radius * math.cos(2 * math.pi * c / 2**32), radius * math.sin(2 * math.pi * c / 2**32)]
    return np.array(values[:n])


def fourier(x: Array, frequencies: Array) -> Array:
    r"""For each row b of the frequencies: :math:`\sin(2 \pi b \cdot x)` and :math:`\cos(2 \pi b \cdot x)`.

    >>> ref.fourier(np.array([[0.125]]), np.array([[1.0], [2.0]])).round(3).ravel().tolist()
    [0.707, 0.707, 1.0, 0.0]
    """
    angle = 2 * np.pi * np.asarray(frequencies, np.float64) @ np.asarray(x, np.float64)
    return _interleave(np.sin(angle)[:, None], np.cos(angle)[:, None])


def composite(x: Array, parts: Sequence[tuple[int, int, Function]], reduction: str = "concatenation") -> Array:
    """Functions of the rows begin to begin + n of x, for each (begin, n, function), joined, summed or multiplied.

    >>> parts = [(0, 1, ref.identity), (1, 1, lambda x: ref.frequency(x, 1))]
    >>> ref.composite(np.array([[0.25], [0.5]]), parts).round(3).ravel().tolist()
    [0.25, 1.0, 0.0]
    """
    results = [np.asarray(f(np.asarray(x, np.float64)[begin : begin + n])) for begin, n, f in parts]
    if reduction == "concatenation":
        return np.concatenate(results)
    return np.asarray((np.sum if reduction == "sum" else np.prod)(np.stack(results), axis=0))


def pad(y: Array, before: int = 0, after: int = 0, value: float = 1.0) -> Array:
    """The rows of y with ``before`` rows of a value in front of them and ``after`` behind.

    >>> ref.pad(np.array([[5.0]]), before=1, after=2).ravel().tolist()
    [1.0, 5.0, 1.0, 1.0]
    """
    return np.pad(np.asarray(y, np.float64), ((before, after), (0, 0)), constant_values=value)


def sinusoidal(x: Array, octaves: int, shift: float = 0) -> Array:
    r"""Frequency encoding, in the order of ``drjit.nn.SinEncode``.

    For each channel, for each octave i: sine and cosine of the angle :math:`2\pi(2^i x + i\,shift)`.

    >>> ref.sinusoidal(np.array([[0.125]]), 2).round(3).ravel().tolist()
    [0.707, 0.707, 1.0, 0.0]
    """
    angle = 2 * np.pi * _octaves(x, octaves, shift)
    return _interleave(np.sin(angle), np.cos(angle))


def triangular(x: Array, octaves: int, shift: float = 0) -> Array:
    r""":func:`sinusoidal` with triangle waves of the same period, in the order of ``drjit.nn.TriEncode``.

    For each channel, for each octave i, with the phase :math:`t = 2^i x + i\,shift` in periods:
    :math:`\triangle(t - 1/4)` and :math:`\triangle(t)`, where :math:`\triangle(t) = 1 - 4|t -
    \mathrm{round}(t)|`.

    >>> ref.triangular(np.array([[0.125]]), 2).round(3).ravel().tolist()
    [0.5, 0.5, 1.0, 0.0]
    """
    phase = _octaves(x, octaves, shift)
    return _interleave(*(1 - 4 * np.abs(t - np.round(t)) for t in (phase - 0.25, phase)))


def _octaves(x: Array, octaves: int, shift: float = 0, lowest: float = 1) -> Array:
    """Phases lowest 2^i x + i shift in periods, shape (channels, octaves, samples), minus the integer nearest to
    lowest 2^i x. The subtraction is exact and does not change a wave. Below 2^-126, lowest x counts as 0: single
    precision has no such numbers on GPUs."""
    i = np.arange(octaves, dtype=np.float64)[:, None]
    first = lowest * np.asarray(x, np.float64)[:, None, :]
    phase = 2.0**i * np.where(np.abs(first) < 2.0**-126, 0, first)
    with np.errstate(invalid="ignore"):  # of infinite coordinates
        return np.asarray(phase - np.round(phase) + i * shift)


def _interleave(s: Array, c: Array) -> Array:
    """(channels, octaves, samples) twice -> (2 channels octaves, samples): channel, octave, then sin, cos."""
    return np.stack([s, c], axis=2).reshape(-1, s.shape[-1])


def _sine_slopes(phase: Array, i: int) -> list[Array]:
    """Derivatives of the features of octave i with respect to its phase, of shape (channels, samples)."""
    return [2 * np.pi * np.cos(2 * np.pi * phase), -2 * np.pi * np.sin(2 * np.pi * phase)]


def _triangle_slope(phase: Array, quarters: int) -> Array:
    """Slope of the wave 1 - 4|t - round(t)| at ``phase`` and as many quarters of a period, 0 at the tips.

    Adding a quarter to phases close to 0 would round them to a quarter, so phases are compared before that.
    """
    t = phase - np.round(phase)
    rising = -np.sign(t) * (np.abs(t) < 0.5) if quarters % 2 == 0 else np.sign(np.abs(t) - 0.25)
    return np.asarray(4 * rising * (1 if quarters < 2 else -1))


def _derivatives(
    name: str, slopes: Callable[[Array, int], list[Array]], lowest: float = 1
) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """From derivatives with respect to phases: the gradient with respect to x, and the derivative in direction dx."""

    def jacobian(x: Array, octaves: int, shift: float) -> Array:
        """Derivatives of each channel's features, shape (channels, octaves, features, samples)."""
        phase = _octaves(x, octaves, shift, lowest)
        return np.stack([lowest * 2.0**i * np.stack(slopes(phase[:, i], i), 1) for i in range(octaves)], 1)

    def vjp(x: Array, dy: Array, octaves: int, shift: float = 0) -> Array:
        j = jacobian(x, octaves, shift)
        return np.asarray((j * np.asarray(dy, np.float64).reshape(j.shape)).sum(axis=(1, 2)))

    def jvp(x: Array, dx: Array, octaves: int, shift: float = 0) -> Array:
        j = jacobian(x, octaves, shift)
        return np.asarray(j * np.asarray(dx, np.float64)[:, None, None, :]).reshape(-1, j.shape[-1])

    vjp.__name__, jvp.__name__ = f"{name}_vjp", f"{name}_jvp"
    vjp.__doc__ = f"""Gradient of :func:`{name}` with respect to x.

    >>> y = ref.{name}(np.array([[0.125]]), 1)
    >>> ref.{name}_vjp(np.array([[0.125]]), y, 1).shape
    (1, 1)
    """
    jvp.__doc__ = f"""Derivative of :func:`{name}` in direction dx.

    >>> ref.{name}_jvp(np.array([[0.125]]), np.ones((1, 1)), 1).shape == ref.{name}(np.array([[0.125]]), 1).shape
    True
    """
    return vjp, jvp


sinusoidal_vjp, sinusoidal_jvp = _derivatives("sinusoidal", _sine_slopes)
triangular_vjp, triangular_jvp = _derivatives("triangular", lambda t, i: [_triangle_slope(t, k) for k in (3, 0)])
frequency_vjp, frequency_jvp = _derivatives("frequency", _sine_slopes, 0.5)
triangle_wave_vjp, triangle_wave_jvp = _derivatives("triangle_wave", lambda t, i: [_triangle_slope(t, i % 4)], 0.5)
