"""Fitting the lobes that directions are sampled from to a decoder."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ...field import NeuralField
from ...nn import MLP, Grid, Identity
from ...random.key import Key
from ...training import fit
from ...training.schedules import cosine
from ..fields import build
from . import lobes as mixture
from .decoder import Decoder
from .latent import Latent
from .reflections import draw
from .sampler import DIRECTION

#: Upper limit of a sample's weight; 1 is the weight at a white surface.
_MOST_WEIGHT = 20.0

#: Share of the samples that is divided equally among the lobes at the start.
_SHARED = 0.8


def fit_lobes(
    reference: Any,
    decoder: Decoder,
    code: Latent,
    resolution: int | None,
    steps: int,
    samples: int,
    options: dict[str, Any],
) -> Any:
    r"""Lobes for ``decoder``, as :class:`NeuralBSDF` takes them.

    They minimize the cross entropy :math:`-\int f \log p` of the sampling density :math:`p` against :math:`f`, the
    values of the decoder times the cosine, as a mean over points and directions of incidence.

    Args:
        reference: a BSDF. The integral is estimated with its samples, and with samples by the cosine.
        code: the latent code of the decoder.
        resolution: ``None`` for a network of code and direction. A number for lobes that do not depend on the
            direction; if the code varies, they lie on a grid of so many vertices a side.
        steps, samples: of the training.
        options: ``seed`` and ``progress`` of :func:`coopnet.fit`.
    """
    count = len(mixture.PARAMETERS[8 if decoder.eta is None else 15])
    weights = mixture.WEIGHTS[count]
    if resolution is None:
        network = MLP(code.count + DIRECTION, count, width=16, depth=2, bias=True)
        field, rate = build(NeuralField(None, network), seed=options["seed"]), 1e-2
    else:
        side = max(2, resolution) if code.varies else 2
        grid = Grid(2, "dense", n_levels=1, n_features_per_level=count, base_resolution=side)
        field, rate = build(NeuralField(grid, Identity())), 0.1

    def batch(key: Key) -> Any:
        return draw(reference, key, samples)

    def cross_entropy(field: NeuralField, drawn: Any, key: Key) -> Any:
        uv = drawn.uv if code.varies else dr.full(mi.Point2f, 0.5, dr.width(drawn.uv))
        numbers = dr.detach(code(uv))
        value = dr.detach(decoder.evaluate(numbers, drawn.wi, drawn.wo, active=drawn.valid))
        value *= dr.square(decoder.index(drawn.wi, drawn.wo))
        params = mixture.from_raw(field([*numbers, *drawn.wi] if resolution is None else list(uv)))
        # in the first half, every lobe gets samples: otherwise the wrong one of two similar lobes may win
        shared = _SHARED * dr.maximum(1 - mi.Float(key.step) * (2 / steps), 0)
        params[:weights] = [(1 - shared) * w + shared / (weights + 1) for w in params[:weights]]
        if decoder.eta is not None:
            params.append(mi.Float(decoder.eta))
        weight = dr.minimum(mi.luminance(value) / drawn.pdf, _MOST_WEIGHT)
        return dr.select(drawn.valid, -weight * dr.log(mixture.pdf(params, drawn.wi, drawn.wo) + 1e-6), 0)

    fit(field, batch, steps, lr=cosine(rate, steps), objective=cross_entropy, **options)
    if resolution is None or code.varies:
        return field
    return [float(v[0]) for v in mixture.from_raw(field([mi.Float(0.5), mi.Float(0.5)]))]
