"""Parameters of tiny-cuda-nn: padding and layout, against a model of it in NumPy."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import drjit as dr
import numpy as np
import pytest
from support.arrays import arrays, values

import coopnet as cn
from coopnet import reference as ref

# ---- The model ---------------------------------------------------------------------------------------------
#
# Structured as tiny-cuda-nn: encodings have widths that are set from outside, and read their part of one flat vector.


def above(n, of):
    return -(-n // of) * of


class Simple:
    """An encoding without parameters: a function, and ones behind its features, or in front."""

    alignment, n_params = 1, 0

    def __init__(self, function, width, in_front=False):
        self.function, self.own, self.width, self.in_front = function, width, width, in_front

    def set_width(self, width):
        assert width >= self.own
        self.width = width

    def set_alignment(self, alignment):
        self.set_width(above(self.width, math.lcm(alignment, self.alignment)))

    def __call__(self, x, params):
        parts = [self.function(x), np.ones((self.width - self.own, x.shape[1]))]
        return np.concatenate(parts[::-1] if self.in_front else parts)


class Grid(Simple):
    """Zeros behind. Single precision decides how many entries a level has."""

    PRIMES = (1, 2654435761, 805459861, 3674653429)

    def __init__(self, given, dimension):
        kind = {"tiledgrid": "tiled", "densegrid": "dense"}.get(given["otype"].lower(), "hash")
        self.kind = {"tile": "tiled"}.get(given.get("type", kind).lower(), given.get("type", kind).lower())
        self.alignment = self.features = given.get("n_features_per_level", 2)
        total = given.get("n_features", given.get("n_grid_features", self.features * given.get("n_levels", 16)))
        self.own = self.width = total
        self.smooth = given.get("interpolation", "Linear").lower()
        f, base, levels = np.float32, given.get("base_resolution", 16), total // self.features
        growth = f(math.exp(f(math.log(f(256) / f(base))) / f(levels - 1))) if self.kind == "dense" else f(2)
        rate = f(math.log2(f(given.get("per_level_scale", growth))))
        self.levels, self.entries = [], 0
        for level in range(levels):
            scale = f(f(2.0 ** float(f(level) * rate)) * f(base)) - f(1)
            resolution = math.ceil(scale) + 1
            most = {"hash": 2 ** given.get("log2_hashmap_size", 19), "tiled": base**dimension, "dense": math.inf}
            size = min(above(resolution**dimension, 8), most[self.kind])
            self.levels.append((float(scale), resolution, self.entries, size))
            self.entries += size
        self.n_params = self.entries * self.features

    def __call__(self, x, params):
        table = params.reshape(self.entries, self.features)
        y = np.zeros((self.width, x.shape[1]))
        for i, (scale, resolution, offset, size) in enumerate(self.levels):
            position = x.astype(np.float32) * np.float32(scale) + np.float32(0.5)
            cell = np.floor(position).astype(np.int64)
            weight = position.astype(np.float64) - cell
            if self.smooth == "smoothstep":
                weight = weight**2 * (3 - 2 * weight)
            for corner in itertools.product((0, 1), repeat=len(x)):
                if self.smooth == "nearest" and any(corner):
                    continue
                index, stride = np.zeros(x.shape[1], np.int64), 1
                vertex = [(c + bit) % 2**32 for c, bit in zip(cell, corner, strict=True)]
                for v in vertex:
                    index, stride = (index + v * stride) % 2**32, stride * resolution
                if self.kind == "hash" and size < stride:
                    index = np.bitwise_xor.reduce([v * p % 2**32 for v, p in zip(vertex, self.PRIMES, strict=False)])
                share = np.prod([w if bit else 1 - w for w, bit in zip(weight, corner, strict=True)], axis=0)
                share = 1 if self.smooth == "nearest" else share
                rows = slice(i * self.features, (i + 1) * self.features)
                y[rows] += share * table[offset + index % size].T
        return y


class Composite(Simple):
    def __init__(self, given, dimension):
        left = dimension - sum(part.get("n_dims_to_encode", 0) for part in given["nested"])
        self.parts, end = [], 0
        for part in given["nested"]:
            begin, n = part.get("dims_to_encode_begin", end), part.get("n_dims_to_encode", left)
            end = begin + n
            if n:
                self.parts.append((encoding(part, n, 1), begin, n))
        self.reduction = given.get("reduction", "Concatenation").lower()
        nested = [e for e, *_ in self.parts]
        self.alignment = math.lcm(*(e.alignment for e in nested))
        if self.reduction == "concatenation":
            so_far = 0
            for e, following in itertools.pairwise(nested):
                e.set_width(above(so_far + e.width, following.alignment) - so_far)
                so_far += e.width
        else:
            for e in nested:
                e.set_alignment(self.alignment)
        self.n_params = sum(e.n_params for e in nested)

    @property
    def width(self):
        widths = [e.width for e, *_ in self.parts]
        return sum(widths) if self.reduction == "concatenation" else widths[0]

    def set_width(self, width):
        if self.reduction == "concatenation":
            last = self.parts[-1][0]
            last.set_width(width - (self.width - last.width))
        else:
            for e, *_ in self.parts:
                e.set_width(width)

    def __call__(self, x, params):
        ys, offset = [], 0
        for e, begin, n in self.parts:
            ys.append(e(x[begin : begin + n], params[offset : offset + e.n_params]))
            offset += e.n_params
        combine = {"concatenation": np.concatenate, "sum": sum, "product": math.prod}
        return combine[self.reduction](ys)


def encoding(given, dimension, alignment):
    name = given.get("otype", "OneBlob").lower()
    waves, bins = given.get("n_frequencies", 12), given.get("n_bins", 16)
    degree, scale = given.get("degree", 4), (given.get("scale", 1.0), given.get("offset", 0.0))
    if name in ("nrc", "oneblobfrequency"):
        nested = [
            {"otype": "TriangleWave", "n_dims_to_encode": 3, "n_frequencies": waves},
            {"otype": "OneBlob", "n_dims_to_encode": 5, "n_bins": given.get("n_bins", 4)},
            {"otype": "Identity"},
        ]
        given, name = {"nested": nested}, "composite"
    made = {
        "identity": lambda: Simple(lambda x: ref.identity(x, *scale), dimension),
        "oneblob": lambda: Simple(lambda x: ref.one_blob(x, bins), dimension * bins),
        "frequency": lambda: Simple(lambda x: ref.frequency(x, waves), 2 * dimension * waves),
        "trianglewave": lambda: Simple(lambda x: ref.triangle_wave(x, waves), dimension * waves),
        "sphericalharmonics": lambda: Simple(lambda x: ref.spherical_harmonics(x, degree), degree**2, True),
        "composite": lambda: Composite(given, dimension),
    }.get(name, lambda: Grid(given, dimension))()
    made.set_alignment(alignment)
    return made


class Model:
    """``NetworkWithInputEncoding``: the parameters of the network, then those of the encoding."""

    FUNCTIONS = {
        "none": lambda x: x, "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "sine": np.sin, "tanh": np.tanh,
    }  # fmt: skip

    def __init__(self, n_in, n_out, config):
        self.encoding = encoding(config.get("encoding", {}), n_in, 8)
        self.encoding.set_alignment(16)
        network = config.get("network", {})
        width, depth = network.get("n_neurons", 128), network.get("n_hidden_layers", 5)
        sizes = [self.encoding.width, *[width] * depth, above(n_out, 16)]
        self.shapes, self.n_out = [(m, n) for n, m in itertools.pairwise(sizes)], n_out
        self.hidden = self.FUNCTIONS[network.get("activation", "ReLU").lower()]
        self.output = self.FUNCTIONS[network.get("output_activation", "None").lower()]
        self.n_params = sum(m * n for m, n in self.shapes) + self.encoding.n_params

    def __call__(self, x, params):
        params, offset, matrices = params.astype(np.float64), 0, []
        for m, n in self.shapes:
            matrices.append(params[offset : offset + m * n].reshape(m, n))
            offset += m * n
        y = self.encoding(x, params[offset:])
        for w in matrices[:-1]:
            y = self.hidden(w @ y)
        return self.output(matrices[-1] @ y)[: self.n_out]

    def draw(self, seed):
        """Parameters that all matter: matrices of random numbers that keep the size of what goes through."""
        rng = np.random.default_rng(seed)
        parts = [rng.normal(size=m * n) / math.sqrt(n) * 1.3 for m, n in self.shapes]
        return np.concatenate([*parts, rng.uniform(-1, 1, self.encoding.n_params)]).astype(np.float32)


# ---- Comparisons -------------------------------------------------------------------------------------------

SMALL = {"otype": "FullyFusedMLP", "n_neurons": 16, "n_hidden_layers": 2}
HASH = {"otype": "HashGrid", "n_levels": 5, "log2_hashmap_size": 9, "base_resolution": 5, "per_level_scale": 1.6}
DIRECTION = {"otype": "SphericalHarmonics", "n_dims_to_encode": 3, "degree": 3}
#: (coordinates, outputs, configuration)
CASES = {
    "hash": (3, 3, {"encoding": HASH, "network": SMALL}),
    "full": (2, 16, {"encoding": HASH | {"n_levels": 8}, "network": SMALL}),
    "hash smooth": (2, 17, {"encoding": HASH | {"interpolation": "Smoothstep", "n_features_per_level": 4},
                            "network": SMALL | {"output_activation": "Sigmoid"}}),
    "dense": (2, 1, {"encoding": {"otype": "Grid", "type": "Dense", "n_levels": 3, "base_resolution": 40},
                     "network": SMALL}),
    "tile": (2, 2, {"encoding": HASH | {"type": "TILE", "n_features_per_level": 8}, "network": SMALL}),
    "coarser": (2, 2, {"encoding": HASH | {"per_level_scale": 0.6}, "network": SMALL}),
    "features": (3, 2, {"encoding": {"otype": "TiledGrid", "n_features": 20, "n_features_per_level": 4,
                                     "base_resolution": 6, "interpolation": "Nearest"}, "network": SMALL}),
    "one blob": (3, 4, {"encoding": {"n_bins": 8}, "network": SMALL | {"n_hidden_layers": 1}}),
    "frequency": (2, 3, {"encoding": {"otype": "Frequency", "n_frequencies": 5}, "network": SMALL}),
    "odd": (3, 5, {"encoding": {"otype": "Identity", "scale": 2.0, "offset": -1.0},
                   "network": {"otype": "CutlassMLP", "n_neurons": 27, "n_hidden_layers": 3, "activation": "Tanh"}}),
    "linear": (3, 5, {"encoding": {"otype": "TriangleWave", "n_frequencies": 3},
                      "network": {"otype": "CutlassMLP", "n_hidden_layers": 0}}),
    "directions": (6, 3, {"encoding": {"otype": "Composite", "nested": [
        HASH | {"n_dims_to_encode": 3}, DIRECTION]}, "network": SMALL}),
    "grid behind": (8, 3, {"encoding": {"otype": "Composite", "nested": [
        {"otype": "Identity", "n_dims_to_encode": 3}, HASH | {"n_dims_to_encode": 2, "n_features_per_level": 4},
        DIRECTION]}, "network": SMALL}),
    "directions before a grid": (5, 3, {"encoding": {"otype": "Composite", "nested": [
        DIRECTION, HASH | {"n_features_per_level": 8}]}, "network": SMALL}),
    "two grids": (5, 3, {"encoding": {"otype": "Composite", "nested": [
        HASH | {"n_dims_to_encode": 2}, HASH | {"n_features_per_level": 4, "otype": "DenseGrid", "n_levels": 2}]},
        "network": SMALL}),
    "nested": (7, 3, {"encoding": {"otype": "Composite", "nested": [
        {"otype": "Composite", "n_dims_to_encode": 5, "nested": [
            HASH | {"n_dims_to_encode": 2, "n_features_per_level": 4, "n_levels": 2}, {"otype": "OneBlob", "n_bins": 2}
        ]}, {"otype": "Identity"}]}, "network": SMALL}),
    "sum": (4, 3, {"encoding": {"otype": "Composite", "reduction": "Sum", "nested": [
        HASH | {"n_dims_to_encode": 2, "n_levels": 2}, {"otype": "TriangleWave", "n_frequencies": 2}]},
        "network": SMALL}),
    "product": (3, 3, {"encoding": {"otype": "Composite", "reduction": "Product", "nested": [
        HASH | {"n_dims_to_encode": 2, "n_features_per_level": 4, "n_levels": 1}, {"otype": "OneBlob", "n_bins": 3}]},
        "network": SMALL}),
    "overlapping": (3, 3, {"encoding": {"otype": "Composite", "nested": [
        {"otype": "OneBlob", "n_bins": 4, "n_dims_to_encode": 2, "dims_to_encode_begin": 1},
        HASH | {"n_dims_to_encode": 2, "dims_to_encode_begin": 0}]}, "network": SMALL}),
    "nrc": (10, 3, {"encoding": {"otype": "NRC"}, "network": SMALL}),
    "sines": (2, 3, {"encoding": {"otype": "Identity"}, "network": SMALL | {"activation": "Sine"}}),
}  # fmt: skip


def made(case, backend="llvm", **options):
    n_in, n_out, config = CASES[case]
    return cn.from_config(n_in, n_out, config, pad="tcnn").field.build(backend, **options), Model(n_in, n_out, config)


@pytest.mark.parametrize("case", CASES)
def test_features(ns, case):
    """What the network gets, one by one."""
    n_in, n_out, config = CASES[case]
    field, model = cn.from_config(n_in, n_out, config, pad="tcnn").field, Model(n_in, n_out, config)
    layer = field.encoding.alloc(ns.TensorXf, n_in)
    assert layer.width(n_in) == model.encoding.width == field.encoding.width(n_in)
    rng = np.random.default_rng(1)
    tables = [name for name in layer]
    assert sum(dr.width(layer[name]) for name in tables) == model.encoding.n_params
    params = rng.uniform(-1, 1, model.encoding.n_params).astype(np.float32)
    ends = np.cumsum([dr.width(layer[name]) for name in tables])
    for name, part in zip(tables, np.split(params, ends[:-1]) if tables else (), strict=True):
        layer[name] = ns.Float(part)
    x = rng.random((n_in, 200)).astype(np.float32)
    np.testing.assert_allclose(
        values(layer(arrays(ns, x))), model.encoding(x, params.astype(np.float64)), rtol=0, atol=2e-4
    )


@pytest.mark.parametrize("case", CASES)
def test_outputs(ns, backend, case):
    field, model = made(case, backend)
    params = model.draw(2)
    field.load_tcnn(params, CASES[case][2])
    x = np.random.default_rng(1).random((field.in_features, 300)).astype(np.float32)
    y, expected = values(field(arrays(ns, x))), model(x, params)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(y, expected, rtol=0, atol=(2e-2 if backend == "cuda" else 2e-5) * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_round_trip(backend, case):
    """To the bit: rows that nothing reads are kept, too."""
    field, model = made(case, backend)
    params = model.draw(3)
    field.load_tcnn(params, CASES[case][2])
    again = field.to_tcnn()
    assert again.dtype == np.float32 and again.shape == (model.n_params,)
    if backend == "cuda":  # matrices in half precision
        np.testing.assert_allclose(again, params, rtol=1e-3, atol=1e-6)
    else:
        assert again.tobytes() == params.tobytes()
    other, _ = made(case, backend, seed=5)
    fresh = other.to_tcnn()  # without anything loaded, those rows are zeros
    unread = (-CASES[case][1] % 16) * model.shapes[-1][1]
    end = sum(m * n for m, n in model.shapes)
    assert not np.any(fresh[end - unread : end]) and np.all(fresh[:10] != 0)
    other.load_tcnn(fresh, CASES[case][2])
    assert np.array_equal(other.to_tcnn(), fresh)


def test_a_loaded_field_trains(ns, backend):
    field, model = made("directions", backend)
    config = cn.from_config(*CASES["directions"], pad="tcnn")
    field.load_tcnn(model.draw(3), config)
    start = field.to_tcnn()

    def batch(key):
        x = cn.uniform(6, key, ns.Float, 128)
        return list(x), [x[0], x[1], x[0] * x[1]]

    losses = cn.fit(field, batch, 20, lr=1e-2, progress=False).losses
    assert losses[-1] < 0.5 * losses[0]
    after = field.to_tcnn()
    end = sum(m * n for m, n in model.shapes)
    unread = slice(end - 13 * 16, end)  # of which there is nothing to learn
    assert not np.array_equal(after, start) and np.array_equal(after[unread], start[unread])


class Tensor:
    """What PyTorch's are to NumPy: on the GPU with a gradient."""

    def __init__(self, array, steps=("detach", "cpu")):
        self.array, self.steps = array, steps

    def detach(self):
        return Tensor(self.array, self.steps[1:])

    cpu = detach

    def __array__(self, dtype=None, copy=None):
        assert not self.steps
        return self.array


class Exchanged:
    """Knows DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_kinds_of_arrays(ns, backend, dtype):
    field, model = made("hash", backend)
    params = model.draw(4).astype(dtype)
    config = CASES["hash"][2]
    tolerance = 1e-3 if backend == "cuda" else 0
    for given in (params, Tensor(params), Exchanged(params), np.frombuffer(params.tobytes(), dtype)):
        field.load_tcnn(np.zeros(model.n_params, np.float32), config)
        field.load_tcnn(given, config)
        np.testing.assert_allclose(field.to_tcnn(), params.astype(np.float32), rtol=tolerance, atol=tolerance)
    if dtype == np.float32:
        field.load_tcnn(ns.Float(params) * 2, config)
        np.testing.assert_allclose(field.to_tcnn(), 2 * params, rtol=tolerance, atol=tolerance)


def test_what_a_configuration_may_be(backend, tmp_path):
    field, model = made("one blob", backend)
    n_in, n_out, config = CASES["one blob"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = cn.from_config(n_in, n_out, config, pad="tcnn")
    for given in (config, json.dumps(config), tmp_path / "config.json", read):
        field.load_tcnn(model.draw(1), given)
    with pytest.raises(TypeError, match="load_tcnn: config is a list; a configuration, or what from_conf"):
        field.load_tcnn(model.draw(1), [config])


def refused(field, params, config, error, message):
    before = field.to_tcnn() if field.precision and "to_tcnn" not in message else None
    with pytest.raises(error, match=r"^NeuralField\.load_tcnn: " + message):
        field.load_tcnn(params, config)
    assert before is None or np.array_equal(field.to_tcnn(), before)


def test_what_is_refused(ns, backend):
    n_in, n_out, config = CASES["hash"]
    field, model = made("hash", backend)
    params = model.draw(1)
    sizes = r"; \d+ are needed: 256 for network\.layers\.0\.weights, .* 256 for .*, \d+ for encoding\.nested\.data"
    refused(field, params[:-1], config, ValueError, rf"params has {model.n_params - 1} numbers{sizes}")
    refused(field, params.reshape(1, -1), config, ValueError, r"params has shape \(1, \d+\); a flat array")
    for wrong in (None, "params", params.astype(int), [1, "a"], object()):
        refused(field, wrong, config, TypeError, "params is .*; an array of floating point numbers is needed")
    other = {"encoding": HASH | {"base_resolution": 6}, "network": SMALL}
    refused(field, params, other, ValueError, "the field's encoding is not that of the configuration; build the one")
    other = {"encoding": HASH, "network": SMALL | {"activation": "Tanh"}}
    refused(field, params, other, ValueError, "the field's network is not that of the configuration")
    plain = cn.from_config(n_in, n_out, config)
    cure = r"read the configuration with from_config\(\.\.\., pad='tcnn'\)"
    with pytest.raises(ValueError, match=rf"load_tcnn: the encoding gives 10 features, .* multiples of 16 .*: {cure}"):
        plain.field.build(backend).load_tcnn(params, config)
    with pytest.raises(ValueError, match="load_tcnn: the field is not built yet"):
        plain.field.load_tcnn(params, config)
    # 16 features, but not those
    side_by_side = {"otype": "Composite", "nested": [
        {"otype": "Identity", "n_dims_to_encode": 2}, HASH | {"n_features_per_level": 7, "n_levels": 2}]}  # fmt: skip
    unpadded = cn.from_config(4, 3, {"encoding": side_by_side, "network": SMALL}).field.build(backend)
    refused(unpadded, params, {"encoding": side_by_side, "network": SMALL}, ValueError, "the field's encoding is not")


def test_fields_that_tiny_cuda_nn_does_not_have(backend):
    for encoding, network, message in [
        (None, cn.MLP(16, 3, bias=True), "an MLP without biases"),
        (None, cn.MLP(16, 3, dropout=0.1), "an MLP without biases and dropouts"),
        (None, cn.Residual(cn.Linear(16, 16, False)), "the network is none of"),
        (cn.HashGrid(2, n_levels=8), cn.MLP(-1, 3), "parameters that tiny-cuda-nn does not know"),
        (cn.Fourier(8, trained=True, in_features=2), cn.MLP(-1, 3), "parameters that tiny-cuda-nn does not know"),
        (cn.OneBlob(5, 2), cn.MLP(-1, 3), "the encoding gives 10 features"),
        (
            cn.Grid(3, "tiled", n_levels=8, base_resolution=16), cn.MLP(-1, 3),
            r"level 7 of encoding\.data has more than 2\^32 vertices",
        ),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=rf"^NeuralField\.to_tcnn: .*{message}"):
            cn.NeuralField(encoding, network).build(backend).to_tcnn()
    assert cn.NeuralField(None, cn.MLP(16, 3, 8, 0)).build(backend).to_tcnn().shape == (256,)


def test_pad_is_checked():
    with pytest.raises(ValueError, match="from_config: pad is 'ones'; accepted are 'none', 'tcnn'"):
        cn.from_config(2, 3, {}, pad="ones")


def test_nothing_is_loaded_if_not_all_can_be(backend):
    config = {"encoding": {"otype": "OneBlob"}, "network": {"otype": "FullyFusedMLP", "n_neurons": 16}}
    field = cn.from_config(2, 3, config, pad="tcnn").field.build(backend, "half")
    before, given = field.to_tcnn(), np.ones(32 * 16 + 4 * 16 * 16 + 16 * 16)
    given[-1 - 13 * 16] = 1e6  # of the last matrix
    with pytest.raises(ValueError, match="too large for float16"):
        field.load_tcnn(given, config)
    np.testing.assert_array_equal(field.to_tcnn(), before)


TRAINED = {
    "identity": {
        "encoding": {"otype": "Identity"},
        "network": {
            "otype": "FullyFusedMLP", "activation": "ReLU", "output_activation": "Sigmoid", "n_neurons": 16,
            "n_hidden_layers": 2,
        },
    },
    "frequency": {
        "encoding": {"otype": "Frequency", "n_frequencies": 5},
        "network": {"otype": "FullyFusedMLP", "activation": "ReLU", "n_neurons": 32, "n_hidden_layers": 3},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_what_tiny_cuda_nn_has_trained(ns, backend, name):
    """Its sample that learns an image, after 1500 steps on an H200: parameters, coordinates, and its own outputs."""
    data = np.load(Path(__file__).parent.parent / "data" / "tiny_cuda_nn.npz")
    params, x, y = (data[f"{name}_{what}"] for what in ("params", "x", "y"))
    field = cn.from_config(2, 3, TRAINED[name], pad="tcnn").field.build(backend)
    field.load_tcnn(params, TRAINED[name])
    seen = np.stack([v.numpy() for v in field([ns.Float(np.ascontiguousarray(c)) for c in x.T])], axis=1)
    error = np.abs(seen.astype(np.float64) - y)
    assert y.std() > 0.05 and error.max() < 4e-3 and error.mean() < 4e-4  # in half precision there
    np.testing.assert_array_equal(field.to_tcnn(), params.astype(np.float32))
