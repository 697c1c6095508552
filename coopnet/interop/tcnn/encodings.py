"""Encodings of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import nn
from ...checks import check, ensure
from .keys import WHERE, Option, check_known, choice, read, section

DIMS = {"n_dims_to_encode": Option(0, 0), "dims_to_encode_begin": Option(0, 0)}
_STORAGE = {"Hash": "hash", "Tiled": "tiled", "Tile": "tiled", "Dense": "dense"}
_INTERPOLATION = {"Linear": "linear", "Nearest": "nearest", "Smoothstep": "smoothstep"}
_REDUCTION = {"Concatenation": "concatenation", "Sum": "sum", "Product": "product"}
_GRID = {
    "type": Option("Hash", names=_STORAGE),
    "n_levels": Option(16, 1),
    "n_features": Option(0, 0),  # of all levels, instead of their number; n_grid_features is an older name
    "n_grid_features": Option(0, 0),
    "n_features_per_level": Option(2, 1),
    "log2_hashmap_size": Option(19, 0, 32),
    "base_resolution": Option(16, 1),
    "per_level_scale": Option(2.0),
    "interpolation": Option("Linear", names=_INTERPOLATION),
    "stochastic_interpolation": Option(False, only="interpolation is exact"),
    "fixed_point_pos": Option(False, only="positions are floating point numbers"),
    "hash": Option("CoherentPrime", only="there is one hash function"),
}
_FREQUENCIES = {"n_frequencies": Option(12, 1)}
_NRC = {"n_frequencies": Option(12, 1), "n_bins": Option(4, 1)}

#: Encodings by their name there: (class in coopnet.nn, keys with tiny-cuda-nn's defaults).
ENCODINGS: dict[str, tuple[type, dict[str, Option]]] = {
    "Composite": (nn.Composite, {"nested": Option([]), "reduction": Option("Concatenation", names=_REDUCTION)}),
    "Frequency": (nn.Frequency, _FREQUENCIES),
    "Grid": (nn.Grid, _GRID),
    "HashGrid": (nn.Grid, _GRID),
    "TiledGrid": (nn.Grid, _GRID | {"type": Option("Tiled", names=_STORAGE)}),
    "DenseGrid": (nn.Grid, _GRID | {"type": Option("Dense", names=_STORAGE)}),
    "Identity": (nn.Identity, {"scale": Option(1.0), "offset": Option(0.0)}),
    "OneBlob": (nn.OneBlob, {"n_bins": Option(16, 1)}),
    "SphericalHarmonics": (nn.SphericalHarmonics, {"degree": Option(4, 1)}),
    "TriangleWave": (nn.TriangleWave, _FREQUENCIES),
    "NRC": (nn.Composite, _NRC),
    "OneBlobFrequency": (nn.Composite, _NRC),
}
NO_ENCODINGS = {
    "Empty": "an encoding without features cannot feed a network",
    "Takikawa": "it needs the octree of a mesh; HashGrid is the nearest",
}


def _component(given: Mapping[str, Any], where: str) -> tuple[type, dict[str, Option]]:
    """Class and keys of an encoding."""
    return choice(f"{where}.otype", given.get("otype", "OneBlob"), ENCODINGS, NO_ENCODINGS)[1]


def read_encoding(given: dict[str, Any], where: str, n_in: int) -> Any:
    cls, keys = _component(given, where)
    values = read(where, given, keys)
    if keys is _NRC:
        wave = {"otype": "TriangleWave", "n_frequencies": values["n_frequencies"], "n_dims_to_encode": 3}
        blob = {"otype": "OneBlob", "n_bins": values["n_bins"], "n_dims_to_encode": 5}
        values = {"nested": [wave, blob, {"otype": "Identity"}], "reduction": "concatenation"}
    if cls is nn.Composite:
        return _composite(values, where, n_in)
    if cls is nn.Grid:
        if given_as := next((name for name in ("n_features", "n_grid_features") if name in given), None):
            values["n_levels"] = _n_levels(given, values, given_as, where)
        names = ("n_levels", "n_features_per_level", "base_resolution", "interpolation")
        options = {name: values[name] for name in names} | {"storage": values["type"]}
        options |= {"in_features": n_in, "hashmap_size": 2 ** values["log2_hashmap_size"]}
        growth = values["per_level_scale"] if "per_level_scale" in given else None
        grid = _make(cls, where, per_level_scale=growth, **options)
        grid.per_level_scale = grid._growth()  # the default follows from the other numbers, there and here
        return grid
    if cls is nn.OneBlob:
        values["periodic"] = False
    valid = cls is not nn.SphericalHarmonics or n_in == 3
    ensure(valid, f"from_config: {where} encodes directions, which have 3 coordinates, but there are {n_in}.")
    return _make(cls, where, **values)


def _n_levels(given: Mapping[str, Any], values: Mapping[str, Any], name: str, where: str) -> int:
    """The number of levels of a grid whose levels have ``values[name]`` features together."""
    both = f"from_config: {where} has {name} and n_levels; one follows from the other"
    ensure("n_levels" not in given, f"{both}.")
    n, each = values[name], values["n_features_per_level"]
    check(n > 0 and n % each == 0, WHERE, f"{where}.{name}", n, f"a multiple of n_features_per_level, {each},")
    return n // each


def _composite(values: dict[str, Any], where: str, n_in: int) -> Any:
    given = values["nested"]
    check(isinstance(given, (list, tuple)) and given, WHERE, f"{where}.nested", given, "a list of encodings")
    parts: list[tuple[str, dict, dict]] = []  # of each: place in the configuration, keys, coordinates that it encodes
    for i, part in enumerate(given):
        inner = f"{where}.nested[{i}]"
        part = section(part, inner)
        # first, because a misspelled key would look like a missing one
        check_known(inner, part, ("otype", *DIMS, *_component(part, inner)[1]))
        dims = {name: key.read(part.pop(name), f"{inner}.{name}") for name, key in DIMS.items() if name in part}
        parts.append((inner, part, dims))
    left = n_in - sum(dims.get("n_dims_to_encode", 0) for *_, dims in parts)
    open_ones = [i for i, (*_, dims) in enumerate(parts) if "n_dims_to_encode" not in dims]
    placed = any("dims_to_encode_begin" in dims for *_, dims in parts)
    rule = "one encoding may leave it out, and none beside dims_to_encode_begin"
    clear = len(open_ones) <= (0 if placed else 1)
    ensure(clear, f"from_config: {where}.nested{open_ones} have no n_dims_to_encode; {rule}.")
    valid = left >= 0 or placed
    ensure(valid, f"from_config: {where}.nested encode {n_in - left} coordinates, but there are {n_in}.")
    nested, begins, sizes, end = [], [], [], 0
    for inner, part, dims in parts:
        begin, n = dims.get("dims_to_encode_begin", end), dims.get("n_dims_to_encode", left)
        end = begin + n
        ensure(end <= n_in, f"from_config: {inner} encodes up to coordinate {end} of {n_in}.")
        if n > 0:
            nested.append(read_encoding(part, inner, n))
            begins.append(begin)
            sizes.append(n)
    if len(nested) == 1 and sizes == [n_in]:
        return nested[0]
    options = {"n_dims_to_encode": sizes, "dims_to_encode_begin": begins if placed else None, "in_features": n_in}
    return _make(nn.Composite, where, nested=nested, reduction=values["reduction"], **options)


def _make(cls: type, where: str, **arguments: Any) -> Any:
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"from_config: {where}: {error}") from None
