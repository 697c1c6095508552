"""Fitting a neural BSDF to another BSDF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import drjit as dr
import mitsuba as mi

from ...bounds import corners
from ...checks import check_above, check_choice, check_flag, check_positive, check_type, check_unsigned, ensure
from ...field import NeuralField
from ...nn import MLP, Composite, Identity
from ...nn.sequential import stated_width
from ...random.key import Key
from ...training import FitResult, fit
from ...training.schedules import cosine
from .. import variants
from ..fields import build
from .decoder import Decoder
from .directions import FEATURES, count
from .latent import Latent
from .lobe_fit import fit_lobes
from .reflections import check_reflects, draw, find_eta, spread
from .specular import Specular, within

#: The loss measures about the absolute error of values below this (in 1/sr, times the cosine), and the relative error
#: of larger ones.
KNEE = 0.03


@dataclass(frozen=True)
class BSDFFit:
    r"""The result of :func:`fit_bsdf`, with errors on samples that it was not trained on.

    ``bsdf`` is a :class:`NeuralBSDF` and ``result`` the :class:`FitResult` of its training. ``relative_error`` is
    :math:`\int |f - f^*| / \int f^*` over the surface and both directions, with the cosine and as a mean of the
    channels. ``albedo`` and ``reference_albedo`` are the mean shares of light that are reflected or transmitted, over
    directions of incidence uniform in the hemisphere, or in both hemispheres if the material transmits. The three
    leave out perfectly specular parts. ``spread`` and ``reference_spread`` are the relative standard deviations of the
    weights ``f / pdf`` of samples, by the fitted lobes and by the reference's own sampling.

    >>> print(cn.mitsuba.fit_bsdf(None, reference, steps=500).relative_error)
    """

    bsdf: Any
    result: FitResult
    relative_error: float
    albedo: float
    reference_albedo: float
    spread: float
    reference_spread: float

    def __repr__(self) -> str:
        return (
            f"<BSDFFit: relative error {self.relative_error:.3f}, albedo {self.albedo:.3f} of "
            f"{self.reference_albedo:.3f}, spread of samples {self.spread:.2f} (reference {self.reference_spread:.2f})>"
        )


def fit_bsdf(
    field: NeuralField | None,
    reference: Any,
    *,
    latent: Any = None,
    directions: str = "rusinkiewicz",
    steps: int = 2000,
    samples: int = 1 << 14,
    lr: float = 5e-3,
    lobe_resolution: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> BSDFFit:
    r"""Fit a :class:`NeuralBSDF` to ``reference``, any BSDF in Mitsuba that is not perfectly specular.

    Perfectly specular parts, such as the coating of ``plastic`` and the holes of ``mask``, stay as they are. The
    network learns the rest, which may transmit light.

    Each step draws points of the unit square, directions of incidence uniform in the hemisphere (or in both, if the
    reference transmits), and outgoing directions, half of them sampled by the reference and half by the cosine. The
    loss of each channel is :math:`(c(f) - c(f^*))^2`, where :math:`f` includes the cosine and
    :math:`c(f) = \log(1 + f / 0.03)` keeps highlights from outweighing the rest. Afterwards, the sampling lobes are
    fitted to the learned BSDF :math:`f`: they maximize :math:`\int f \log p`, the likelihood of directions drawn in
    proportion to it.

    Args:
        field: a decoder of ``[code, direction features]`` with 3 outputs and no encoding. A built one is trained in
            place, others are built first. ``None``: ``MLP(width=32, depth=3, bias=True)``.
        reference: a ``mi.BSDF``. If it transmits, it has one refractive index.
        latent: ``None`` for a material that is the same everywhere, or an encoding of the texture coordinates such as
            ``cn.Grid(2, "dense", n_levels=1, base_resolution=256, n_features_per_level=8)``, or a built field of one,
            trained with the decoder.
        directions: see :class:`Decoder`.
        steps, samples, lr: training steps, samples per step, and the largest learning rate of a cosine schedule.
        lobe_resolution: ``None`` for lobes that a small network computes from the latent code and the direction of
            incidence. A number for lobes without a network, the same for all directions: where there is a latent code,
            they vary with the texture coordinates on a grid of so many vertices a side.
        seed: int in [0, 2^63).
        progress: show progress bars, or lines of text if tqdm is not installed.

    Returns:
        A :class:`BSDFFit`.

    Raises:
        TypeError, ValueError: ``reference`` is not a BSDF, is perfectly specular, is ``twosided`` (also in a ``mask``),
            contains a ``mask`` or is a ``mask`` around specular parts, transmits with several refractive indices,
            reflects nothing, or cannot be evaluated; other arguments out of range.
        RuntimeError: no variant is set, or one in which fields do not run.

    >>> reference = mi.load_dict({"type": "roughconductor", "alpha": 0.2})
    >>> neural = cn.mitsuba.fit_bsdf(None, reference, steps=500).bsdf
    """
    where = "fit_bsdf"
    variants.check_rgb(where)
    check_type(where, "reference", reference, mi.BSDF, "a mi.BSDF of the variant that is set")
    flags = reference.flags()
    mirror = "is perfectly specular, which a network cannot learn; make it rough, or use it as it is"
    ensure(mi.has_flag(flags, mi.BSDFFlags.Smooth), f"{where}: reference {mirror}.")
    specular = reference if mi.has_flag(flags, mi.BSDFFlags.Delta) else None
    if specular is not None:
        Specular(specular, where, "reference")
    hint = "pass the BSDF of its front, and put what is learned into a twosided"
    outermost = [reference, *within(reference)[: reference.class_name() == "MaskBSDF"]]
    one_side = all(bsdf.class_name() != "TwoSidedBRDF" for bsdf in outermost)
    ensure(one_side, f"{where}: reference is twosided, but only the front of a BSDF is learned; {hint}.")
    check_choice(where, "directions", directions, tuple(FEATURES))
    steps, samples = check_positive(where, "steps", steps), check_positive(where, "samples", samples)
    if lobe_resolution is not None:
        lobe_resolution = check_positive(where, "lobe_resolution", lobe_resolution)
    lr, seed = check_above(where, "lr", lr), check_unsigned(where, "seed", seed, 63)
    check_flag(where, "progress", progress)
    check_reflects(reference, where)
    eta = find_eta(reference, where)
    code = Latent(latent, where, "latent")
    ensure(code.varies or not code.count, f"{where}: latent is constant, which a decoder needs no code for; use None.")
    decoder = _decoder(field, code, directions, eta, seed, where)

    joint, angles = decoder.field, decoder.direction_features
    if code.field is not None:  # code and decoder as one field, with one optimizer
        hint = "a decoder with a latent code takes its inputs as they are; leave its bounds out"
        ensure(decoder.field.bounds is None, f"{where}: field has bounds, but {hint}.")
        encoding = Composite([code.field.encoding, Identity()], [2, angles])
        joint = NeuralField(encoding, decoder.field.network, in_features=2 + angles)
        if code.field.bounds is not None:  # features of directions must reach the decoder unchanged
            low, high = corners(code.field.bounds, 2)
            joint.bounds = (*map(float, low), *[0.0] * angles), (*map(float, high), *[1.0] * angles)
        joint.precision = decoder.field.precision

    def batch(key: Key) -> Any:
        return draw(reference, key, samples)

    def objective(field: NeuralField, drawn: Any, key: Key) -> Any:
        uv = list(drawn.uv) if code.varies else []
        raw = field(decoder.inputs(uv, drawn.wi, drawn.wo), None, drawn.valid)
        value = decoder.value(raw, drawn.wo) * decoder.index(drawn.wi, drawn.wo)
        error = [dr.log(1 + a / KNEE) - dr.log(1 + b / KNEE) for a, b in zip(value, drawn.value, strict=True)]
        return dr.select(drawn.valid, sum(dr.square(e) for e in error) / 3, 0)

    options: dict[str, Any] = dict(seed=seed, progress=progress)
    result = fit(joint, batch, steps, lr=cosine(lr, steps), objective=objective, **options)
    lobes = fit_lobes(reference, decoder, code, lobe_resolution, max(400, steps // 2), min(samples, 4096), options)
    bsdf = variants.made("NeuralBSDF")(decoder, code.field, lobes, specular=specular)
    return BSDFFit(bsdf, result, *_figures(bsdf, reference, Key(seed + (1 << 63))))


def _decoder(
    field: NeuralField | None, code: Latent, directions: str, eta: float | None, seed: int, where: str
) -> Decoder:
    inputs = code.count + count(directions, eta)
    if field is None:
        field = NeuralField(None, MLP(inputs, 3, width=32, depth=3, bias=True))
    check_type(where, "field", field, NeuralField, "a NeuralField or None")
    plain = isinstance(field.encoding, (Identity, type(None)))
    ensure(plain, f"{where}: field has a {type(field.encoding).__name__}; a decoder without encoding is needed.")
    if field.precision is None:
        unsaid = field.encoding is None and field.in_features == -1 and field.network is not None
        if unsaid and stated_width([field.network]) < 1:
            field = NeuralField(None, field.network, field.output, inputs, field.bounds)
        field = build(field, seed=seed)
    return Decoder(field, code.count, directions, eta)


def _figures(bsdf: Any, reference: Any, key: Key) -> list[float]:
    """The numbers of a :class:`BSDFFit`, on samples of ``key``."""
    samples = 1 << 17
    with dr.suspend_grad():
        drawn = draw(reference, key, samples)
        code, pair = bsdf.latent(drawn.uv), (drawn.wi, drawn.wo)
        value = bsdf.decoder.evaluate(code, *pair, active=drawn.valid) * dr.square(bsdf.decoder.index(*pair))
        parts = [sum(v) / (3 * drawn.pdf) for v in (dr.abs(value - drawn.value), value, drawn.value)]
        dr.eval(parts)  # in one kernel, and not in one for each mean
        error, albedo, true = map(dr.mean, parts)
        numbers = [error / true, albedo, true, spread(bsdf, key, samples), spread(reference, key, samples)]
        dr.eval(numbers)
        return [float(v[0]) for v in numbers]
