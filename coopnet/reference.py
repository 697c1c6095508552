r"""Ground truth: every operation of the library in plain NumPy, in double precision.

Written separately from the library, from the formulas, so that the two check each other; clarity comes before
speed. Arrays have the shape ``(features, samples)``: a column is one sample. Functions named ``*_vjp`` take
the gradient ``dy`` of a scalar loss with respect to the output and return the gradients with respect to the
inputs. ``OPS`` maps every public name to its twin here.

Sources: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox); Srivastava et al. 2014
(dropout); Glorot and Bengio 2010 (initialization); Mildenhall et al. 2020 and Müller et al. 2021, 2022
(sinusoidal, triangular and hash-grid encodings); Welford 1962 (running variance).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]

# ---- Generator ---------------------------------------------------------------------------------------------

_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: Sequence[Any], key: Sequence[Any], rounds: int = 10) -> tuple[Any, ...]:
    r"""Philox4x32-``rounds``: four random words for four counter words and two key words (low, high).

    One round maps :math:`(c_0, c_1, c_2, c_3)` to :math:`(hi_1 \oplus c_1 \oplus k_0,\ lo_1,\ hi_0 \oplus c_3
    \oplus k_1,\ lo_0)` with :math:`(hi_0, lo_0) = M_0 c_0` and :math:`(hi_1, lo_1) = M_1 c_2`; the key then
    grows by the Weyl constants :math:`(W_0, W_1)`. Words are ``uint32`` arrays, which broadcast, or Python
    ints in [0, 2^32); the result is four arrays, or four ints if all words were ints.
    """
    if len(counter) != 4 or len(key) != 2:
        raise ValueError(f"philox4x32: counter and key need 4 and 2 words, got {len(counter)} and {len(key)}")
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    k0, k1 = (np.asarray(k, np.uint64) for k in key)
    m0, m1, w0, w1 = (np.uint64(v) for v in _MULTIPLIER + _WEYL)
    for _ in range(rounds):
        product0, product1 = m0 * c0, m1 * c2  # 32 x 32 bits: exact in 64
        c0, c1 = (product1 >> _HALF) ^ c1 ^ k0, product1 & _LOW
        c2, c3 = (product0 >> _HALF) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + w0) & _LOW, (k1 + w1) & _LOW
    words = np.broadcast_arrays(c0, c1, c2, c3)
    if all(isinstance(v, int) for v in (*counter, *key)):
        return tuple(int(w) for w in words)
    return tuple(w.astype(np.uint32) for w in words)


# ---- Dropout -----------------------------------------------------------------------------------------------


def threshold(p: float, bits: int = 16) -> int:
    """Number of the 2^bits values of a random digit that drop an element: round(p 2^bits)."""
    if bits not in (8, 16, 32):
        raise ValueError(f"threshold: bits must be 8, 16 or 32, got {bits!r}")
    if not 0 <= p < 1:
        raise ValueError(f"threshold: p must be in [0, 1), got {p!r}")
    t: int = round(float(p) * 2**bits)
    if t >= 2**bits:
        raise ValueError(f"threshold: p={p!r} rounds to dropping everything with bits={bits}")
    return t


def scale(p: float, bits: int = 16) -> float:
    """Factor 2^bits / (2^bits - t) of kept elements, which keeps the mean exactly; not rounded to a type."""
    return float(2**bits / (2**bits - threshold(p, bits)))


def keep_mask(features: int, p: float, seed: int, index: Any, step: Any = 0, stream: int = 0, bits: int = 16) -> Array:
    r"""Keep mask of shape (features, samples): True where element i of a sample survives.

    Element i uses word :math:`w = \lfloor i k / 32 \rfloor` of its sample's random bits, i.e. lane :math:`w
    \bmod 4` of :math:`\mathrm{philox}(\lfloor w / 4 \rfloor, index, step, stream)` under the key ``seed``,
    and of that word the digit of :math:`k` bits number :math:`i \bmod 32/k` from the low end. It is kept
    iff digit >= threshold. ``index`` holds one identity per sample; ``step`` is a number or one per sample.
    Every element makes its own call of the generator here.
    """
    t = threshold(p, bits)
    if not 0 <= seed < 2**64:
        raise ValueError(f"keep_mask: seed must be in [0, 2^64), got {seed!r}")
    sample = np.atleast_1d(np.asarray(index)).astype(np.uint32)[None, :]
    time = np.asarray(step).astype(np.uint32)
    first_bit = np.arange(features)[:, None] * bits  # where the digit starts in the sample's bit string
    block, lane, shift = first_bit // 128, first_bit // 32 % 4, first_bit % 32
    words = philox4x32((block, sample, time, np.uint32(stream)), (seed % 2**32, seed // 2**32))
    word = np.choose(np.broadcast_to(lane, words[0].shape), words)
    digit = (word >> shift.astype(np.uint32)) % np.uint64(2**bits)
    return np.asarray(digit >= np.uint64(t))


def dropout(x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0, bits: int = 16) -> Array:
    """keep ? x * scale : 0 for x of shape (features, samples); scale and product have the type of x.

    ``index`` defaults to the column number. The gradient is the same function applied to the gradient.
    """
    return _dropped(x, x.shape[0], p, seed, index, step, stream, bits)


def drop_path(
    x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0, bits: int = 16
) -> Array:
    """:func:`dropout` of whole samples: the decision about element 0 holds for all features of a sample."""
    return _dropped(x, 1, p, seed, index, step, stream, bits)


def _dropped(x: Array, decisions: int, p: float, seed: int, index: Any, step: Any, stream: int, bits: int) -> Array:
    """x with as many keep decisions for a sample: one for each of its elements, or one for all."""
    if p == 0:
        return x
    mask = keep_mask(decisions, p, seed, np.arange(x.shape[1]) if index is None else index, step, stream, bits)
    y: Array = np.where(mask, x * x.dtype.type(scale(p, bits)), x.dtype.type(0))
    return y


def gaussian_dropout(x: Array, p: float, seed: int, index: Any = None, step: Any = 0, stream: int = 0) -> Array:
    r"""x times noise of mean 1 and variance :math:`p / (1 - p)`, in double precision.

    Element i uses lane :math:`i \bmod 4` of :math:`\mathrm{philox}(\lfloor i / 4 \rfloor, index, step, stream)`, of
    which the upper 24 bits n make the normally distributed number :math:`\Phi^{-1}((n + 1/2) / 2^{24})`.
    """
    index = np.arange(x.shape[1]) if index is None else index
    sample, time = np.atleast_1d(np.asarray(index)).astype(np.uint32), np.asarray(step).astype(np.uint32)
    inverse = statistics.NormalDist().inv_cdf
    y = np.empty(x.shape)
    for i in range(len(x)):
        words = philox4x32((np.uint32(i // 4), sample, time, np.uint32(stream)), (seed % 2**32, seed // 2**32))
        n = np.broadcast_to(words[i % 4] >> np.uint32(8), x.shape[1:])
        z = np.array([inverse((int(v) + 0.5) / 2**24) for v in n])
        y[i] = x[i] * (1 + math.sqrt(p / (1 - p)) * z)
    return y


def uint_to_uniform_float(word: Any) -> Array:
    """Triton's map of a word to float32 in [0, 1): the word as int32, negatives folded up, times ~2^-31."""
    signed = np.asarray(word, np.uint32).view(np.int32)
    folded = np.where(signed < 0, -(signed + 1), signed)  # -x - 1, without overflow
    return np.asarray(folded.astype(np.float32) * np.float32(4.6566127342e-10))


def seeded_dropout(x: Array, p: float, seed: Any, offset: Any = None, convention: str = "triton") -> Array:
    """Dropout of an array in another system's convention; ``offset`` defaults to the position in ``x``.

    ``"triton"``: ``tl.rand(seed, offset) > p`` keeps, in float32 as in Triton's tutorial
    04-low-memory-dropout, where the Python float p enters the kernel as float32. tl.rand converts word 0 of
    the counter ``(offset, 0, 0, 0)``; offsets are 32-bit.

    ``"ztensor"``: kept iff word 0 of the counter ``(offset_lo, offset_hi, 0, 0)`` is at least ceil(p 2^32).

    The key is ``(seed_lo, seed_hi)``; survivors are multiplied by 1 / (1 - p), rounded once to x's type. A
    vector of seeds belongs to the rows of a matrix; ``offset`` then defaults to the column. ``offset``
    broadcasts to the shape of ``x``.
    """
    if not 0 <= p < 1:
        raise ValueError(f"seeded_dropout: p must be in [0, 1), got {p!r}")
    by_row = np.ndim(seed) == 1
    if offset is None:
        offset = np.arange(x.shape[-1]) if by_row else np.arange(x.size).reshape(x.shape)
    where = np.broadcast_to(np.asarray(offset).astype(np.uint64), x.shape)
    seeds = np.asarray(seed, np.uint64)[:, None] if by_row else np.uint64(seed)
    low, high = where & _LOW, where >> _HALF
    key = (seeds & _LOW, seeds >> _HALF)
    if convention == "triton":
        if np.any(high):
            raise ValueError("seeded_dropout: the triton convention has 32-bit offsets")
        keep = uint_to_uniform_float(philox4x32((low, 0, 0, 0), key)[0]) > np.float32(p)
    elif convention == "ztensor":
        keep = philox4x32((low, high, 0, 0), key)[0] >= np.uint64(math.ceil(p * 2**32))
    else:
        raise ValueError(f'seeded_dropout: convention must be "triton" or "ztensor", got {convention!r}')
    y: Array = np.where(keep, x * x.dtype.type(1 / (1 - p)), x.dtype.type(0))
    return y


# ---- Linear layer and activations --------------------------------------------------------------------------


def linear(W: Array, x: Array, b: Array | None = None) -> Array:
    """W x + b for W of shape (out, in), x of shape (in, samples) and b of shape (out,)."""
    y = np.asarray(W, np.float64) @ np.asarray(x, np.float64)
    return y if b is None else y + np.asarray(b, np.float64)[:, None]


def initial_deviation(init: str, fan_in: int, fan_out: int) -> float:
    """Standard deviation of initial weights: Glorot 2010 (xavier), He 2015 (kaiming), Sitzmann 2020 (siren)."""
    return {
        "xavier_uniform": math.sqrt(2 / (fan_in + fan_out)),
        "xavier_normal": math.sqrt(2 / (fan_in + fan_out)),
        "kaiming_uniform": math.sqrt(2 / fan_in),
        "kaiming_normal": math.sqrt(2 / fan_in),
        "siren": math.sqrt(2 / fan_in),
        "siren_first": 1 / (math.sqrt(3) * fan_in),
        "zero": 0.0,
    }[init]


def uniform_bound(init: str, fan_in: int, fan_out: int) -> float:
    """Bound a of the uniform law on [-a, a] with the standard deviation of ``init``."""
    return math.sqrt(3) * initial_deviation(init, fan_in, fan_out)


_SLOPE = 0.01  # of leaky_relu below zero


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # never overflows
    y: Array = np.where(x >= 0, 1.0, e) / (1.0 + e)
    return y


def _tanh_derivative(x: Array) -> Array:
    e = np.exp(-2 * np.abs(x))
    return np.asarray(4 * e / (1 + e) ** 2)  # 1 / cosh^2 without cancellation


def _exp(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(x)


def _ones(x: Array) -> Array:
    return np.ones_like(x)


def _squareplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + 2 / (np.abs(x) + np.sqrt(x**2 + 4)))


def _gelu_argument(x: Array) -> tuple[Array, Array]:
    """The argument of the hyperbolic tangent, and its derivative."""
    c = math.sqrt(2 / math.pi)
    return c * (x + 0.044715 * x**3), c * (1 + 3 * 0.044715 * x**2)


def _gelu(x: Array) -> Array:
    return np.asarray(x * _sigmoid(2 * _gelu_argument(x)[0]))


def _gelu_derivative(x: Array) -> Array:
    u, du = _gelu_argument(x)
    return np.asarray(_sigmoid(2 * u) + x / 2 * _tanh_derivative(u) * du)


_RAW: dict[str, tuple[Function, Function]] = {
    "identity": (lambda x: x, _ones),
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: np.where(x > 0, 1.0, 0.0)),
    "leaky_relu": (lambda x: np.where(x > 0, x, _SLOPE * x), lambda x: np.where(x > 0, 1.0, _SLOPE)),
    "tanh": (np.tanh, _tanh_derivative),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), _sigmoid),
    "squareplus": (_squareplus, lambda x: _squareplus(x) / (_squareplus(x) + _squareplus(-x))),
    "gelu": (_gelu, _gelu_derivative),
    "silu": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x))),
    "sine": (np.sin, np.cos),
    "exp": (_exp, _exp),
}


def leaky_relu(x: Array, negative_slope: float = _SLOPE) -> Array:
    """x above zero, ``negative_slope`` times x below."""
    x = np.asarray(x, np.float64)
    return np.where(x > 0, x, negative_slope * x)


def sine(x: Array, omega: float = 1.0) -> Array:
    """sin(omega x)."""
    return np.asarray(np.sin(omega * np.asarray(x, np.float64)))


def softplus(x: Array, beta: float = 1.0) -> Array:
    """log(1 + exp(beta x)) / beta."""
    return np.asarray(_RAW["softplus"][0](beta * np.asarray(x, np.float64)) / beta)


def squareplus(x: Array, beta: float = 1.0) -> Array:
    """(X + sqrt(X^2 + 4)) / (2 beta) with X = beta x (Barron 2021)."""
    return np.asarray(_squareplus(beta * np.asarray(x, np.float64)) / beta)


def _double(f: Function) -> Function:
    return lambda x: f(np.asarray(x, np.float64))


ACTIVATIONS: dict[str, tuple[Function, Function]] = {n: (_double(f), _double(d)) for n, (f, d) in _RAW.items()}
"""name -> (f, f'). At the kink, relu'(0) = 0 and leaky_relu'(0) = 0.01, the values Dr.Jit has there."""


def _activation(name: str | None) -> tuple[Function, Function]:
    name = "identity" if name is None else name
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


# ---- Encodings of coordinates ------------------------------------------------------------------------------


def identity(x: Array, scale: float = 1.0, offset: float = 0.0) -> Array:
    """scale x + offset, by default x itself, in double precision."""
    return np.asarray(x, np.float64) * scale + offset


def frequency(x: Array, n_frequencies: int) -> Array:
    r"""For each channel, for each i: :math:`\sin(2^i \pi x)` and :math:`\cos(2^i \pi x)` (tiny-cuda-nn)."""
    angle = np.pi * 2.0 ** np.arange(n_frequencies)[:, None] * np.asarray(x, np.float64)[:, None, :]
    return _interleave(np.sin(angle), np.cos(angle))


def triangle_wave(x: Array, n_frequencies: int) -> Array:
    r"""For each channel, for each i: :math:`4 |\mathrm{frac}(2^{i-1} x + i/4) - 1/2| - 1` (tiny-cuda-nn)."""
    i = np.arange(n_frequencies, dtype=np.float64)[:, None]
    t = 2.0 ** (i - 1) * np.asarray(x, np.float64)[:, None, :] + i / 4
    return np.asarray(4 * np.abs(t - np.floor(t) - 0.5) - 1).reshape(-1, t.shape[-1])


def one_blob(x: Array, n_bins: int) -> Array:
    """For each channel, for each bin: the part in it of a quartic kernel of radius 1 / n_bins around x in [0, 1].

    The kernel appears at x - 1, x and x + 1 (tiny-cuda-nn); its integral is a clamped polynomial.
    """
    edges = np.arange(n_bins + 1)[:, None] / n_bins - np.asarray(x, np.float64)[:, None, :]
    total = np.zeros_like(edges)
    for shift in (-1, 0, 1):
        u = np.clip((edges + shift) * n_bins, -1, 1)
        total += 15 / 16 * (u - 2 / 3 * u**3 + 1 / 5 * u**5) + 1 / 2
    return np.asarray(np.diff(total, axis=1)).reshape(-1, edges.shape[-1])


def spherical_harmonics(x: Array, degree: int) -> Array:
    """Real spherical harmonics of v = 2 x - 1, bands 0 to degree - 1, with the Condon-Shortley phase.

    By the recurrence of the associated Legendre functions in z without their factor (1 - z^2)^(m/2), which belongs to
    the real and imaginary part of (v_x + i v_y)^m.
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
    """
    values = []
    for i in range((n + 1) // 2):
        a, b, c, _ = (int(w) for w in philox4x32((i, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32)))
        radius = math.sqrt(-2 * math.log((((a << 32 | b) >> 11) + 1) / 2**53))
        values += [radius * math.cos(2 * math.pi * c / 2**32), radius * math.sin(2 * math.pi * c / 2**32)]
    return np.array(values[:n])


def fourier(x: Array, frequencies: Array) -> Array:
    r"""For each row b of the frequencies: :math:`\sin(2 \pi b \cdot x)` and :math:`\cos(2 \pi b \cdot x)`."""
    angle = 2 * np.pi * np.asarray(frequencies, np.float64) @ np.asarray(x, np.float64)
    return _interleave(np.sin(angle)[:, None], np.cos(angle)[:, None])


def composite(x: Array, parts: Sequence[tuple[int, int, Function]], reduction: str = "concatenation") -> Array:
    """Functions of the rows begin to begin + n of x, for each (begin, n, function), joined, summed or multiplied."""
    results = [np.asarray(f(np.asarray(x, np.float64)[begin : begin + n])) for begin, n, f in parts]
    if reduction == "concatenation":
        return np.concatenate(results)
    return np.asarray((np.sum if reduction == "sum" else np.prod)(np.stack(results), axis=0))


def _octaves(x: Array, octaves: int, shift: float) -> tuple[Array, Array]:
    """Phases 2^i x + i shift in periods, shape (channels, octaves, samples), and their slopes 2^i."""
    i = np.arange(octaves, dtype=np.float64)[:, None]
    return 2.0**i * np.asarray(x, np.float64)[:, None, :] + i * shift, 2.0**i


def _interleave(s: Array, c: Array) -> Array:
    """(channels, octaves, samples) twice -> (2 channels octaves, samples): channel, octave, then sin, cos."""
    return np.stack([s, c], axis=2).reshape(-1, s.shape[-1])


def _uninterleave(dy: Array, channels: int, octaves: int) -> tuple[Array, Array]:
    d = np.asarray(dy, np.float64).reshape(channels, octaves, 2, -1)
    return d[:, :, 0], d[:, :, 1]


def sinusoidal(x: Array, octaves: int, shift: float = 0) -> Array:
    r"""Frequency encoding, in the order of ``drjit.nn.SinEncode``.

    For each channel, for each octave i: sine and cosine of the angle :math:`2\pi(2^i x + i\,shift)`.
    """
    phase, _ = _octaves(x, octaves, shift)
    return _interleave(np.sin(2 * np.pi * phase), np.cos(2 * np.pi * phase))


def sinusoidal_vjp(x: Array, dy: Array, octaves: int, shift: float = 0) -> Array:
    """Gradient of :func:`sinusoidal` with respect to x."""
    phase, slope = _octaves(x, octaves, shift)
    ds, dc = _uninterleave(dy, len(x), octaves)
    angle = 2 * np.pi * phase
    return np.asarray((2 * np.pi * slope * (ds * np.cos(angle) - dc * np.sin(angle))).sum(axis=1))


def _triangle(t: Array) -> Array:
    """Triangle wave of period 1 with the phase of the cosine, 1 - 4 |t - round(t)|."""
    return 1 - 4 * np.abs(t - np.round(t))


def _triangle_derivative(t: Array) -> Array:
    return -4 * np.sign(t - np.round(t))


def triangular(x: Array, octaves: int, shift: float = 0) -> Array:
    r""":func:`sinusoidal` with triangle waves of the same period, in the order of ``drjit.nn.TriEncode``.

    For each channel, for each octave i, with the phase :math:`t = 2^i x + i\,shift` in periods:
    :math:`\triangle(t - 1/4)` and :math:`\triangle(t)`, where :math:`\triangle(t) = 1 - 4|t -
    \mathrm{round}(t)|`.
    """
    phase, _ = _octaves(x, octaves, shift)
    return _interleave(_triangle(phase - 0.25), _triangle(phase))


def sinusoidal_jvp(x: Array, dx: Array, octaves: int, shift: float = 0) -> Array:
    """Derivative of :func:`sinusoidal` in direction dx."""
    phase, slope = _octaves(x, octaves, shift)
    angle, moved = 2 * np.pi * phase, 2 * np.pi * slope * np.asarray(dx, np.float64)[:, None, :]
    return _interleave(moved * np.cos(angle), -moved * np.sin(angle))


def triangular_jvp(x: Array, dx: Array, octaves: int, shift: float = 0) -> Array:
    """Derivative of :func:`triangular` in direction dx; zero at the tips of the waves."""
    phase, slope = _octaves(x, octaves, shift)
    moved = slope * np.asarray(dx, np.float64)[:, None, :]
    return _interleave(moved * _triangle_derivative(phase - 0.25), moved * _triangle_derivative(phase))


def triangular_vjp(x: Array, dy: Array, octaves: int, shift: float = 0) -> Array:
    """Gradient of :func:`triangular` with respect to x; zero at the tips of the waves."""
    phase, slope = _octaves(x, octaves, shift)
    ds, dc = _uninterleave(dy, len(x), octaves)
    derivative = ds * _triangle_derivative(phase - 0.25) + dc * _triangle_derivative(phase)
    return np.asarray((slope * derivative).sum(axis=1))


# Multipliers of the spatial hash, one per dimension (Müller et al. 2022, eq. 4, continued by tiny-cuda-nn).
_PRIMES = (1, 2654435761, 805459861, 3674653429, 2097192037, 1434869437, 2165219737)


class GridLevel(NamedTuple):
    """A level of a hash grid: cells per unit length, vertices per axis, first vertex, number of vertices."""

    scale: float
    resolution: int
    offset: int
    size: int


def hash_grid_levels(
    dimension: int,
    n_levels: int = 16,
    n_features_per_level: int = 2,
    hashmap_size: int = 2**19,
    base_resolution: int = 16,
    per_level_scale: float = 2.0,
    level_scales: Sequence[float] | None = None,
    storage: str = "hash",
    multiple: int | None = None,
) -> list[GridLevel]:
    r"""Layout of a hash grid as in ``drjit.nn.HashGridEncoding``.

    There are (offset + size of the last level) times ``n_features_per_level`` parameters.

    Level l has scale :math:`s_l = base \cdot b^l - 1`, :math:`N_l = \lceil s_l \rceil + 1` vertices per
    axis, and :math:`\min(N_l^{dimension}, hashmap\_size)` stored vertices (before the minimum, rounded up
    to a multiple of the features per level). Where :math:`s_l` is an integer in exact arithmetic, the last
    bit of a power decides :math:`N_l`; ``level_scales`` therefore takes the scales from elsewhere.
    ``multiple`` is another number to round up to (tiny-cuda-nn: 8); ``"dense"`` storage has no minimum, that of
    ``"tiled"`` storage is taken with :math:`base^{dimension}`.
    """
    multiple = n_features_per_level if multiple is None else multiple
    most = {"hash": hashmap_size, "tiled": base_resolution**dimension}.get(storage)
    levels, offset = [], 0
    for level in range(n_levels):
        s = base_resolution * per_level_scale**level - 1.0
        if level_scales is not None:
            s = float(level_scales[level])
        resolution = math.ceil(s) + 1
        dense = min(resolution**dimension, (2**32 - 1) // 2)
        size = -(-dense // multiple) * multiple
        size = size if most is None else min(size, most)
        levels.append(GridLevel(s, resolution, offset, size))
        offset += size
    return levels


def _vertex_slot(vertex: Array, level: GridLevel, storage: str = "hash") -> Array:
    """Where a level stores the vertices with integer coordinates (dimension, samples).

    Row-major with the first axis fastest if every axis fits, else the hash XOR_d(v_d prime_d); in 32-bit
    arithmetic and modulo the size of the level. The test compares N^j with the size after each axis j and
    stops at the first that exceeds it. Because of the modulo, a dense level wraps around: coordinate N is 0
    of the next row. Other storage than ``"hash"`` never hashes.
    """
    v = vertex.astype(np.uint64) & _LOW
    strides = [1]
    while len(strides) <= len(v) and (strides[-1] <= level.size or storage != "hash"):
        strides.append(strides[-1] * level.resolution)
    slot = np.zeros(v.shape[1], np.uint64)
    if strides[-1] > level.size and storage == "hash":
        for coordinate, prime in zip(v, _PRIMES, strict=False):
            slot ^= (coordinate * np.uint64(prime)) & _LOW
    else:
        for coordinate, stride in zip(v, strides, strict=False):
            slot += coordinate * np.uint64(stride & 0xFFFFFFFF)
    return np.asarray(np.uint64(level.offset) + (slot & _LOW) % np.uint64(level.size)).astype(np.int64)


def _grid_corners(
    x: Array,
    table: Array,
    n_levels: int,
    align_corners: bool = False,
    storage: str = "hash",
    interpolation: str = "linear",
    **options: Any,
) -> Iterable[tuple[int, Array, Array, Array]]:
    """For each level and corner of the cell: (level, storage slot, weight, gradient of the weight wrt x)."""
    levels = _grid_levels(x, table, n_levels, storage=storage, **options)
    for number, level in enumerate(levels):
        position = x * level.scale + (0.0 if align_corners else 0.5)
        cell = np.floor(position)
        fraction = position - cell
        gain: Array = np.full_like(fraction, level.scale)
        if interpolation == "nearest":
            yield number, _vertex_slot(cell.astype(np.int64), level, storage), np.ones(x.shape[1]), np.zeros_like(x)
            continue
        if interpolation == "smoothstep":
            gain = 6 * fraction * (1 - fraction) * level.scale
            fraction = fraction**2 * (3 - 2 * fraction)
        for corner in itertools.product((0, 1), repeat=len(x)):
            upper = np.array(corner)[:, None]
            factor = np.where(upper == 1, fraction, 1 - fraction)
            slope = np.where(upper == 1, gain, -gain)
            others = [np.delete(factor, d, axis=0).prod(axis=0) for d in range(len(x))]
            slot = _vertex_slot(cell.astype(np.int64) + upper, level, storage)
            yield number, slot, factor.prod(axis=0), slope * np.stack(others)


def hash_grid(x: Array, params: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any) -> Array:
    r"""Multiresolution hash encoding (Müller et al. 2022), as ``drjit.nn.HashGridEncoding`` computes it.

    On each level, x in [0, 1]^d is placed at :math:`s_l x + 1/2` (at :math:`s_l x` with ``align_corners=True``)
    and the features of the 2^d vertices around it are interpolated multilinearly. Row ``l F + f`` of the
    output is feature f of level l; ``params`` is flat, the F features of a vertex side by side. Positions
    below zero are undefined in Dr.Jit, which converts negative floats to ``UInt32``. ``interpolation`` may be
    ``"smoothstep"``, which puts :math:`t^2 (3 - 2 t)` for the fraction t of a cell, or ``"nearest"``, which takes the
    lowest vertex of the cell. The other options are those of :func:`hash_grid_levels`.
    """
    x, table = _grid_inputs(x, params, n_features_per_level)
    y = np.zeros((n_levels, n_features_per_level, x.shape[1]))
    for number, slot, weight, _ in _grid_corners(x, table, n_levels, **options):
        y[number] += weight * table[slot].T
    return y.reshape(-1, x.shape[1])


def hash_grid_vjp(
    x: Array, params: Array, dy: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any
) -> tuple[Array, Array]:
    """Gradients (dx, dparams) of :func:`hash_grid`; the cell of a sample counts as constant."""
    x, table = _grid_inputs(x, params, n_features_per_level)
    d = np.asarray(dy, np.float64).reshape(n_levels, n_features_per_level, -1)
    dx, dtable = np.zeros_like(x), np.zeros_like(table)
    for number, slot, weight, dweight in _grid_corners(x, table, n_levels, **options):
        dx += dweight * (d[number] * table[slot].T).sum(axis=0)
        np.add.at(dtable, slot, (weight * d[number]).T)
    return dx, dtable.ravel()


def hash_grid_jvp(
    x: Array, params: Array, dx: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any
) -> Array:
    """Derivative of :func:`hash_grid` in direction dx; the cell of a sample counts as constant."""
    x, table = _grid_inputs(x, params, n_features_per_level)
    dy = np.zeros((n_levels, n_features_per_level, x.shape[1]))
    for number, slot, _, dweight in _grid_corners(x, table, n_levels, **options):
        dy[number] += (dweight * np.asarray(dx, np.float64)).sum(axis=0) * table[slot].T
    return dy.reshape(-1, x.shape[1])


def permutohedral(x: Array, params: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any) -> Array:
    r"""Permutohedral encoding as ``drjit.nn.PermutoEncoding`` computes it, laid out as :func:`hash_grid`.

    The features at the d + 1 vertices of the simplex around :math:`s_l x + 1/2` are interpolated. Its vertices are the
    cell's lowest one and those reached from it by going up along the axes in descending order of the fraction; their
    weights are the differences of successive fractions. Options as :func:`hash_grid_levels`.
    """
    x, table = _grid_inputs(x, params, n_features_per_level)
    y = np.zeros((n_levels, n_features_per_level, x.shape[1]))
    for number, slot, weight in _simplex_vertices(x, table, n_levels, **options):
        y[number] += weight * table[slot].T
    return y.reshape(-1, x.shape[1])


def permutohedral_vjp(
    x: Array, params: Array, dy: Array, n_levels: int = 16, n_features_per_level: int = 2, **options: Any
) -> Array:
    """Gradient of :func:`permutohedral` with respect to params."""
    x, table = _grid_inputs(x, params, n_features_per_level)
    d = np.asarray(dy, np.float64).reshape(n_levels, n_features_per_level, -1)
    dtable = np.zeros_like(table)
    for number, slot, weight in _simplex_vertices(x, table, n_levels, **options):
        np.add.at(dtable, slot, (weight * d[number]).T)
    return dtable.ravel()


def _simplex_vertices(x: Array, table: Array, n_levels: int, **options: Any) -> Iterable[tuple[int, Array, Array]]:
    """For each level and vertex of the simplex: (level, storage slot, weight)."""
    for number, level in enumerate(_grid_levels(x, table, n_levels, **options)):
        position = x * level.scale + 0.5
        vertex = np.floor(position).astype(np.int64)
        fraction = position - vertex
        order = np.argsort(-fraction, axis=0, kind="stable")
        bounds = np.concatenate(
            [np.ones((1, x.shape[1])), np.take_along_axis(fraction, order, 0), np.zeros_like(x[:1])]
        )
        for step in range(len(x) + 1):
            if step:
                vertex = vertex + (np.arange(len(x))[:, None] == order[step - 1])
            yield number, _permuto_slot(vertex, level), bounds[step] - bounds[step + 1]


def _permuto_slot(vertex: Array, level: GridLevel) -> Array:
    """:func:`_vertex_slot` with the rolling hash h -> (h + v_d) 2531011."""
    if level.resolution ** len(vertex) <= level.size:
        return _vertex_slot(vertex, level)
    slot = np.zeros(vertex.shape[1], np.uint64)
    for coordinate in vertex.astype(np.uint64) & _LOW:
        slot = (slot + coordinate) * np.uint64(2531011) & _LOW
    return np.asarray(np.uint64(level.offset) + slot % np.uint64(level.size)).astype(np.int64)


def _grid_inputs(x: Array, params: Array, features: int) -> tuple[Array, Array]:
    return np.asarray(x, np.float64), np.asarray(params, np.float64).reshape(-1, features)


def _grid_levels(x: Array, table: Array, n_levels: int, **options: Any) -> list[GridLevel]:
    """The levels, which must be of the size of the table."""
    levels = hash_grid_levels(len(x), n_levels, table.shape[1], **options)
    vertices = levels[-1].offset + levels[-1].size
    if len(table) != vertices:
        raise ValueError(f"hash_grid: these levels store {vertices} vertices, but params hold {len(table)}")
    return levels


# ---- Random projection -------------------------------------------------------------------------------------


def sparse_projection_matrix(n_in: int, n_out: int, density: float, seed: int = 0) -> Array:
    r"""Matrix (n_out, n_in) of entries +a, -a and 0 with a^2 = 1 / (density n_out), in double precision.

    Entry (i, j) has the word number i mod 4 of Philox counter (floor(i / 4), j, 0, 2^32 - 1) under the key
    ``seed``. With t = max(round(density 2^31), 1), it is 0 unless floor(word / 2) < t; its sign is negative
    for odd words. The density in a is the quantized one, t / 2^31.
    """
    t = max(round(density * 2**31), 1)
    i, j = np.arange(n_out)[:, None], np.arange(n_in)[None, :]
    words = philox4x32((i // 4, j, 0, 2**32 - 1), (seed % 2**32, seed // 2**32))
    word = np.choose(np.broadcast_to(i % 4, (n_out, n_in)), words).astype(np.int64)
    a = 1 / math.sqrt(t / 2**31 * n_out)
    return np.where(word // 2 < t, np.where(word % 2 == 1, -a, a), 0.0)


def sparse_projection(
    x: Array, out_features: int = 64, density: float = 1 / 3, seed: int = 0, in_features: int | None = None
) -> Array:
    """R x for x of shape (in, samples); with ``in_features``, the transpose R^T x of (out, samples)."""
    if in_features is None:
        return linear(sparse_projection_matrix(len(x), out_features, density, seed), x)
    return linear(sparse_projection_matrix(in_features, out_features, density, seed).T, x)


# ---- Embedding ---------------------------------------------------------------------------------------------


def embedding(ids: Array, table: Array, out_of_range: str = "error") -> Array:
    """Rows ``ids`` of the table (count, width) as columns (width, samples).

    Ids outside [0, count) are an ``IndexError``, or with ``out_of_range`` ``"zero"`` give zeros, with ``"clamp"`` the
    nearest row.
    """
    table, ids, inside = _rows(ids, table, out_of_range)
    return np.asarray(np.where(inside, table[ids].T, 0.0))


def embedding_vjp(ids: Array, table: Array, dy: Array, out_of_range: str = "error") -> Array:
    """Gradient of :func:`embedding` with respect to the table: each row's sum over the samples that read it."""
    table, ids, inside = _rows(ids, table, out_of_range)
    dtable = np.zeros_like(table)
    np.add.at(dtable, ids, np.where(inside, np.asarray(dy, np.float64), 0.0).T)
    return dtable


def _rows(ids: Array, table: Array, out_of_range: str) -> tuple[Array, Array, Array]:
    if out_of_range not in ("error", "zero", "clamp"):
        raise ValueError(f"embedding: out_of_range is {out_of_range!r}; accepted are 'error', 'zero' and 'clamp'")
    table, ids = np.asarray(table, np.float64), np.asarray(ids)
    inside = (ids >= 0) & (ids < len(table))
    if out_of_range == "error" and not inside.all():
        raise IndexError(f"embedding: ids reach from {ids.min()} to {ids.max()}, but there are {len(table)} rows")
    nearest = np.where(inside, ids, np.where(ids < 0, 0, len(table) - 1)).astype(np.int64)
    return table, nearest, inside | (out_of_range == "clamp")


# ---- Networks ----------------------------------------------------------------------------------------------


class MLPDropout(NamedTuple):
    """Dropout of an MLP: arguments of :func:`dropout`, and a stream per hidden layer (None: 0, 1, 2, ...)."""

    p: float
    bits: int = 16
    seed: int = 0
    index: Any = None
    step: Any = 0
    streams: Sequence[int] | None = None

    def factors(self, layer: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Multipliers of the activations of a hidden layer: 0 or the scale rounded to ``dtype``."""
        stream = layer if self.streams is None else self.streams[layer]
        index = np.arange(shape[1]) if self.index is None else self.index
        keep = keep_mask(shape[0], self.p, self.seed, index, self.step, stream, self.bits)
        return np.where(keep, float(np.dtype(dtype).type(scale(self.p, self.bits))), 0.0)


def mlp(
    weights: Sequence[Array],
    x: Array,
    activation: str,
    output_activation: str | None = None,
    biases: Sequence[Array | None] | None = None,
    dropout: MLPDropout | tuple[Any, ...] | None = None,
    dtype: Any = np.float64,
) -> Array:
    """Multilayer perceptron: each layer is :func:`linear`, the activation, then dropout on hidden layers.

    ``weights`` are the matrices in order, the last being the output layer; ``dropout`` is an
    :class:`MLPDropout` or a tuple of its fields. Everything is computed in double precision; ``dtype`` only
    rounds the scale of the dropout.
    """
    return _mlp_trace(weights, x, activation, output_activation, biases, dropout, dtype)[0]


def mlp_vjp(
    weights: Sequence[Array],
    x: Array,
    dy: Array,
    activation: str,
    output_activation: str | None = None,
    biases: Sequence[Array | None] | None = None,
    dropout: MLPDropout | tuple[Any, ...] | None = None,
    dtype: Any = np.float64,
) -> tuple[Array, Array, list[Array], list[Array]]:
    """(y, dx, dweights, dbiases) of :func:`mlp` by backpropagation; dbiases also where there is no bias.

    With z = W h + b and the layer's output a = f(z) m, m the dropout factors: dz = da m f'(z), dW = dz h^T,
    db is dz summed over the samples, and dh = W^T dz.
    """
    y, layers = _mlp_trace(weights, x, activation, output_activation, biases, dropout, dtype)
    d = np.asarray(dy, np.float64)
    dweights: list[Array] = []
    dbiases: list[Array] = []
    for W, (h, z, factors, derivative) in zip(reversed(weights), reversed(layers), strict=True):
        d = d * factors * derivative(z)
        dweights.insert(0, d @ h.T)
        dbiases.insert(0, d.sum(axis=1))
        d = np.asarray(W, np.float64).T @ d
    return y, d, dweights, dbiases


def mlp_jvp(
    weights: Sequence[Array],
    x: Array,
    dx: Array,
    activation: str,
    output_activation: str | None = None,
    biases: Sequence[Array | None] | None = None,
    dropout: MLPDropout | tuple[Any, ...] | None = None,
    dtype: Any = np.float64,
) -> tuple[Array, Array]:
    """(y, dy) of :func:`mlp`, dy the derivative in direction dx: dz = W dh, and through the activation m f'(z) dz."""
    y, layers = _mlp_trace(weights, x, activation, output_activation, biases, dropout, dtype)
    d = np.asarray(dx, np.float64)
    for W, (_, z, factors, derivative) in zip(weights, layers, strict=True):
        d = factors * derivative(z) * linear(W, d)
    return y, d


def siren(weights: Sequence[Array], biases: Sequence[Array], x: Array, omega_0: float = 30, omega: float = 30) -> Array:
    """Linear layers with sin(omega_0 h) after the first and sin(omega h) after the other hidden ones."""
    h = np.asarray(x, np.float64)
    for i, (a, b) in enumerate(zip(weights, biases, strict=True)):
        h = linear(a, h, b)
        if i < len(weights) - 1:
            h = np.sin((omega if i else omega_0) * h)
    return h


def siren_bounds(widths: Sequence[int], omega: float = 30) -> list[float]:
    """Bounds of the initial weights after each of the widths but the last (Sitzmann et al. 2020, section 3.2)."""
    first, *others = [uniform_bound("siren" if i else "siren_first", n, 0) for i, n in enumerate(widths[:-1])]
    return [first, *(bound / omega for bound in others)]


def _mlp_trace(
    weights: Sequence[Array],
    x: Array,
    activation: str,
    output_activation: str | None,
    biases: Sequence[Array | None] | None,
    dropout: MLPDropout | tuple[Any, ...] | None,
    dtype: Any,
) -> tuple[Array, list[tuple[Array, Array, Array, Function]]]:
    """Output of an MLP and, for each layer, (input, pre-activation, dropout factors, f')."""
    drop = None if dropout is None else MLPDropout(*dropout)
    h, layers = np.asarray(x, np.float64), []
    for i, W in enumerate(weights):
        hidden = i + 1 < len(weights)
        f, derivative = _activation(activation if hidden else output_activation)
        z = linear(W, h, None if biases is None else biases[i])
        factors = drop.factors(i, z.shape, dtype) if hidden and drop is not None else np.ones_like(z)
        layers.append((h, z, factors, derivative))
        h = np.where(factors == 0, 0.0, f(z) * factors)
    return h, layers


def sequential(*functions: Function) -> Function:
    """The composition that applies ``functions`` from left to right."""

    def run(x: Array) -> Array:
        for f in functions:
            x = f(x)
        return x

    return run


def residual(f: Function) -> Function:
    """x -> x + f(x) (He et al. 2016, eq. 1)."""
    return lambda x: np.asarray(x + f(x))


def skip(f: Function) -> Function:
    """x -> (f(x), x), along the features."""
    return lambda x: np.concatenate([f(x), x])


def heads(trunk: Function, *functions: Function) -> Function:
    """x -> (f_1(h), ..., f_k(h)) with h = trunk(x), along the features."""

    def run(x: Array) -> Array:
        h = trunk(x)
        return np.concatenate([f(h) for f in functions])

    return run


def neural_field(encoding: Function, network: Function) -> Function:
    """x -> network(encoding(x))."""
    return sequential(encoding, network)


def numerical_gradient(field: Function, p: Array, eps: float) -> Array:
    """Gradient of a function with one output by central differences, shape (coordinates, samples)."""
    p = np.asarray(p, np.float64)
    steps = [eps * np.eye(len(p))[:, i : i + 1] for i in range(len(p))]
    return np.concatenate([(field(p + e) - field(p - e)) / (2 * eps) for e in steps])


# ---- Measures ----------------------------------------------------------------------------------------------


def l2(a: Array, b: Array) -> float:
    """Mean squared difference."""
    return float(np.mean((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2))


def _luminance(y: Array) -> Array:
    """Luminance of a color (3 rows), or of the sum of two (6 rows)."""
    colors = y.reshape(-1, 3, y.shape[-1]).sum(axis=0)
    return np.asarray(np.array([[0.299, 0.587, 0.114]]) @ colors)


def _huber(y: Array, t: Array, at: Array, p: Array) -> Array:
    e = np.abs(y - t)
    return np.where(e <= 1, e**2 / 2, e - 0.5)


def _gaussian(y: Array, t: Array, at: Array, p: Array) -> Array:
    m, s = np.split(y, 2)
    return np.asarray((s + (t - m) ** 2 * np.exp(-s)) / 2)


LOSSES: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
    "l2": lambda y, t, at, p: (y - t) ** 2,
    "l1": lambda y, t, at, p: np.abs(y - t),
    "huber": _huber,
    "relative_l1": lambda y, t, at, p: np.abs(y - t) / (np.abs(at) + 0.01),
    "relative_l2": lambda y, t, at, p: (y - t) ** 2 / (at**2 + 0.01),
    "relative_l2_luminance": lambda y, t, at, p: (y - t) ** 2 / (_luminance(at) ** 2 + 0.01),
    "mape": lambda y, t, at, p: np.abs(y - t) / (np.abs(t) + 0.01),
    "smape": lambda y, t, at, p: np.abs(y - t) / (0.5 * (np.abs(t) + np.abs(at)) + 0.01),
    "cross_entropy": lambda y, t, at, p: -t * np.log(y),
    "variance": lambda y, t, at, p: t**2 / y - t**2 / p,
    "gaussian_nll": _gaussian,
}
"""name -> loss of every component, shape (components, samples), of prediction y, target t, the prediction ``at`` that
stands in denominators as a constant, and the density p of the samples."""


def loss(name: str, y: Array, t: Array, pdf: Any = None, at: Array | None = None) -> Array:
    """Loss of every sample: the mean over components of ``LOSSES[name]`` divided by the density."""
    y, t = np.asarray(y, np.float64), np.asarray(t, np.float64)
    p = np.broadcast_to(np.asarray(1.0 if pdf is None else pdf, np.float64), t.shape)
    return np.asarray((LOSSES[name](y, t, y if at is None else np.asarray(at, np.float64), p) / p).mean(axis=0))


def adam_step(
    w: Array,
    m: Array,
    v: Array,
    g: Array,
    t: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    l2_reg: float = 0.0,
    relative_decay: float = 0.0,
    absolute_decay: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Step t = 1, 2, ... of Adam (Kingma and Ba 2015): (weights, first moment, second moment)."""
    g = g + l2_reg * w
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    kept = (1 - rate * relative_decay) * w - rate * absolute_decay * np.sign(w)
    return kept - rate * m / (np.sqrt(v) + epsilon), m, v


def psnr(a: Array, b: Array, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio 10 log10(peak^2 / l2) in decibels; infinite for equal arrays."""
    error = l2(a, b)
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)


def welford(samples: Iterable[Any]) -> tuple[Array, Array]:
    """Mean and population standard deviation along the first axis, in one pass without storing the samples.

    With the k-th sample: d = x - mean, mean += d / k, S += d (x - mean); the variance is S / k (Welford
    1962).
    """
    count, mean, spread = 0, np.zeros(()), np.zeros(())
    for count, sample in enumerate(samples, 1):
        x = np.asarray(sample, np.float64)
        d = x - mean
        mean = mean + d / count
        spread = spread + d * (x - mean)
    if count == 0:
        raise ValueError("welford: there are no samples")
    return mean, np.sqrt(spread / count)


def mc_dropout(field: Callable[[int], Array], samples: int, step: int = 0) -> tuple[Array, Array]:
    """Mean and population standard deviation of ``field(step * samples + i)``, ``i < samples``, steps modulo 2^32.

    ``field`` maps the step of a key to the outputs under its masks (Gal and Ghahramani 2016).
    """
    return welford(field((step * samples + i) % 2**32) for i in range(samples))


OPS: dict[str, Callable[..., Any]] = {
    "philox4x32": philox4x32,
    "dropout": dropout,
    "dropout_mask": keep_mask,
    "mc_dropout": mc_dropout,
    "seeded_dropout": seeded_dropout,
    "Dropout": dropout,
    "DropPath": drop_path,
    "GaussianDropout": gaussian_dropout,
    "Linear": linear,
    "Identity": identity,
    "ReLU": ACTIVATIONS["relu"][0],
    "LeakyReLU": leaky_relu,
    "Tanh": ACTIVATIONS["tanh"][0],
    "Sigmoid": ACTIVATIONS["sigmoid"][0],
    "Softplus": softplus,
    "Squareplus": squareplus,
    "GELU": ACTIVATIONS["gelu"][0],
    "SiLU": ACTIVATIONS["silu"][0],
    "Sine": sine,
    "Exp": ACTIVATIONS["exp"][0],
    "Sinusoidal": sinusoidal,
    "Triangular": triangular,
    "Frequency": frequency,
    "TriangleWave": triangle_wave,
    "OneBlob": one_blob,
    "SphericalHarmonics": spherical_harmonics,
    "Fourier": fourier,
    "Composite": composite,
    "HashGrid": hash_grid,
    "numerical_gradient": numerical_gradient,
    "SparseProjection": sparse_projection,
    "Grid": hash_grid,
    "Permutohedral": permutohedral,
    "SIREN": siren,
    "Embedding": embedding,
    "MLP": mlp,
    "Sequential": sequential,
    "Residual": residual,
    "Skip": skip,
    "Heads": heads,
    "NeuralField": neural_field,
}
"""Public name of an operation -> the function here that it must agree with."""
