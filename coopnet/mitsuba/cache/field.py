"""Fields that radiance caches are made of."""

from __future__ import annotations

import drjit as dr

from ...field import NeuralField
from ...io import construct, describe
from ...nn import MLP, Composite, HashGrid, Identity, OneBlob, SphericalHarmonics
from ...nn.parameters import like
from .surface import INPUTS

FEATURES = sum(INPUTS.values())


def default_field() -> NeuralField:
    """A field for a room or an object: a hash grid of 6 levels, from 8 to 113 cells a side, and a small network."""
    grid = HashGrid(3, n_levels=6, hashmap_size=2**16, base_resolution=8, per_level_scale=1.7)
    parts = [grid, SphericalHarmonics(3), SphericalHarmonics(2), OneBlob(4), Identity()]
    encoding = Composite(parts, [3, 3, 3, 1, 6])
    return NeuralField(encoding, MLP(out_features=3, width=32, depth=2), in_features=FEATURES)


def averaged_of(field: NeuralField) -> NeuralField:
    """Another field of the same architecture, backend and precision with the same weights, to hold their average."""
    array = dr.leaf_t(dr.array_t(type(next(iter(field.values())))))
    tensor = dr.tensor_t(dr.float16_array_t(array) if field.precision == "half" else dr.float32_array_t(array))
    copy = construct(describe(field)).allocate(tensor, field.precision or "").pack()
    for name, value in field.items():
        copy[name] = like(dr.detach(copy[name]), dr.copy(dr.detach(value).array))
    return copy
