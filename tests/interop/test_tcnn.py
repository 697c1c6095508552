"""Fields, losses and optimizers from JSON configurations of tiny-cuda-nn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import drjit as dr
import numpy as np
import pytest
from support.arrays import values

import coopnet as cn
from coopnet import reference as ref
from coopnet.interop.tcnn import encodings, losses, networks, optimizers
from coopnet.nn.tree import children

ROOT = Path(cn.__file__).parent.parent

HASH = {
    "loss": {"otype": "RelativeL2"},
    "optimizer": {
        "otype": "EMA",
        "decay": 0.95,
        "nested": {
            "otype": "ExponentialDecay",
            "decay_start": 20,
            "decay_interval": 10,
            "decay_base": 0.5,
            "decay_end": 45,
            "nested": {"otype": "Adam", "learning_rate": 1e-2, "beta2": 0.99, "epsilon": 1e-15, "l2_reg": 1e-6},
        },
    },
    "encoding": {
        "otype": "HashGrid",
        "n_levels": 4,
        "n_features_per_level": 2,
        "log2_hashmap_size": 8,
        "base_resolution": 4,
        "per_level_scale": 1.5,
    },
    "network": {"otype": "FullyFusedMLP", "activation": "ReLU", "n_neurons": 16, "n_hidden_layers": 2},
}
IDENTITY = {"encoding": {"otype": "Identity"}}


def test_a_whole_configuration():
    config = cn.from_config(2, 3, HASH)
    field, encoding = config.field, config.field.encoding
    assert isinstance(field, cn.NeuralField) and field.precision is None and field.in_features == 2
    for name, value in dict(
        in_features=2, n_levels=4, n_features_per_level=2, hashmap_size=256, base_resolution=4, per_level_scale=1.5
    ).items():
        assert getattr(encoding, name) == value, name
    assert repr(field.network) == repr(cn.MLP(-1, 3, 16, 2))
    assert config.loss == "relative_l2" and config.ema == 0.95
    optimizer = config.optimizer()
    assert isinstance(optimizer, cn.training.Adam) and optimizer is not config.optimizer()
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon, optimizer.l2_reg) == (0.9, 0.99, 1e-15, 1e-6)
    # the rate decays at step 20 itself, and at 30 and 40, but not behind 45
    expected = {0: 1, 19: 1, 20: 1 / 2, 29: 1 / 2, 30: 1 / 4, 40: 1 / 8, 45: 1 / 8, 50: 1 / 8, 10**6: 1 / 8}
    assert {s: config.lr(s) / 1e-2 for s in expected} == pytest.approx(expected)
    assert set(config.fit_arguments()) == {"loss", "optimizer", "lr", "loss_scale"}


def test_decay_counts_as_tiny_cuda_nn_does():
    """The factor is multiplied in the steps that start, start + interval, ... until end, itself included."""
    settings = {"decay_base": 0.5, "decay_start": 3, "decay_interval": 4, "decay_end": 11}
    optimizer = {"otype": "ExponentialDecay", **settings, "nested": {"otype": "SGD", "learning_rate": 1}}
    rate = cn.from_config(1, 1, IDENTITY | {"optimizer": optimizer}).lr
    factor = 1.0
    for step in range(30):
        if step >= 3 and (step - 3) % 4 == 0 and step <= 11:
            factor *= 0.5
        assert rate(step) == factor


def test_it_trains(ns, backend):
    config = cn.from_config(2, 3, HASH)
    field = config.field.build(backend)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 256)
        return [x, y], [x, y, x * y]

    result = cn.fit(field, batch, 60, progress=False, **config.fit_arguments())
    assert result.recordings <= 2
    assert np.mean(result.losses[-5:]) < 0.3 * np.mean(result.losses[:5])


def test_the_moving_average(ns, backend):
    config = cn.from_config(1, 1, IDENTITY | {"optimizer": {"otype": "EMA", "decay": 0.75}})
    field = cn.NeuralField(None, cn.MLP(1, 1, 8, 1)).build(backend)
    average = config.fit_arguments(field)["ema"]
    assert isinstance(average, cn.training.EMA) and average.decay == 0.75
    assert average.total is not None  # corrected for its bias
    assert "ema" not in config.fit_arguments()
    assert "ema" not in cn.from_config(1, 1, IDENTITY).fit_arguments(field)


def test_dictionary_text_and_file_are_the_same(tmp_path):
    path = tmp_path / "config.json"
    text = json.dumps(HASH)
    path.write_text(text)
    commented = text.replace("{", '{ // "a" comment: {\n /* and\n "another" */', 1).replace('"loss"', '"loss"/**/')
    for given in (HASH, text, "  \n" + text, path, str(path), commented, "// first\n" + text):
        config = cn.from_config(2, 3, given)
        assert repr(config.field) == repr(cn.from_config(2, 3, HASH).field) and config.ema == 0.95
    # as most samples of its documentation
    last = '{"loss": {"otype": "L1", // Component type.\n }, "encoding": {"otype": "NRC", "n_bins": 4 /**/ , },\n}'
    assert cn.from_config(8, 3, last).loss.__name__ == "l1"
    with pytest.raises(ValueError, match="is not JSON"):
        cn.from_config(2, 3, '{"loss": {"otype": "L1",, }}')
    with pytest.raises(ValueError, match=r"otype is 'a,}'"):
        cn.from_config(2, 3, '{"encoding": {"otype": "a,}"}}')
    # what looks like a comment in a string is none
    with pytest.raises(ValueError, match=r"otype is 'Hash//Grid'"):
        cn.from_config(2, 3, '{"encoding": {"otype": "Hash//Grid"}}')


def test_defaults_are_those_of_tiny_cuda_nn():
    config = cn.from_config(2, 3, IDENTITY)
    assert repr(config.field.network) == repr(cn.MLP(-1, 3, 128, 5)) and isinstance(config.field.encoding, cn.Identity)
    assert config.loss == "relative_l2" and config.ema is None and config.lr == 1e-3
    optimizer = config.optimizer()
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon, optimizer.l2_reg) == (0.9, 0.999, 1e-8, 1e-8)
    assert optimizer.relative_decay == optimizer.absolute_decay == 0
    sgd = cn.from_config(2, 3, IDENTITY | {"optimizer": {"otype": "sgd"}}).optimizer()
    assert isinstance(sgd, cn.training.SGD) and (sgd.lr, sgd.l2_reg) == (1e-3, 1e-8)
    ema = cn.from_config(2, 3, IDENTITY | {"optimizer": {"otype": "EMA"}})
    assert ema.ema == 0.99 and isinstance(ema.optimizer(), cn.training.Adam)
    decay = cn.from_config(2, 3, IDENTITY | {"optimizer": {"otype": "ExponentialDecay"}})
    assert [decay.lr(s) for s in (9999, 10000, 20000)] == pytest.approx([1e-3, 1e-4, 1e-5])
    both = {"otype": "ExponentialDecay", "nested": {"otype": "EMA", "decay": 0.5, "nested": {"otype": "SGD"}}}
    assert cn.from_config(2, 3, IDENTITY | {"optimizer": both}).ema == 0.5


INF = float("inf")
COUNT, DECAY, BIN_COUNT = (12, 1, INF), (0.0, 0, INF), (4, 1, INF)
GRID = {
    "n_levels": (16, 1, INF), "n_features_per_level": (2, 1, INF), "log2_hashmap_size": (19, 0, 32),
    "base_resolution": (16, 1, INF), "per_level_scale": (2.0, None, INF), "stochastic_interpolation": False,
    "fixed_point_pos": False, "hash": "CoherentPrime", "interpolation": "Linear", "n_features": (0, 0, INF),
    "n_grid_features": (0, 0, INF),
}  # fmt: skip
#: tiny-cuda-nn's defaults; of numbers, with the least that is accepted and the least that is too much.
DEFAULTS = {
    "Composite": {"nested": [], "reduction": "Concatenation"},
    "Frequency": {"n_frequencies": COUNT},
    "Grid": GRID | {"type": "Hash"}, "HashGrid": GRID | {"type": "Hash"},
    "TiledGrid": GRID | {"type": "Tiled"}, "DenseGrid": GRID | {"type": "Dense"},
    "Identity": {"scale": (1.0, None, INF), "offset": (0.0, None, INF)},
    "OneBlob": {"n_bins": (16, 1, INF)},
    "SphericalHarmonics": {"degree": (4, 1, INF)},
    "TriangleWave": {"n_frequencies": COUNT},
    "NRC": {"n_frequencies": COUNT, "n_bins": BIN_COUNT},
    "OneBlobFrequency": {"n_frequencies": COUNT, "n_bins": BIN_COUNT},
    "MLP": {
        "activation": "ReLU", "output_activation": "None", "n_neurons": (128, 1, 2**16),
        "n_hidden_layers": (5, 0, 1024),
    },
    "Adam": {
        "learning_rate": (1e-3, 0, INF), "beta1": (0.9, 0, 1), "beta2": (0.999, 0, 1), "epsilon": (1e-8, 1e-18, INF),
        "l2_reg": (1e-8, 0, INF), "relative_decay": DECAY, "absolute_decay": DECAY, "adabound": False,
        "clipping_magnitude": (0.0, 0, INF), "gradient_clipping_magnitude": (0.0, 0, INF),
        "non_matrix_learning_rate_factor": (1.0, 0, INF), "non_matrix_l2_reg": (0.0, 0, INF),
        "optimize_matrix_params": True, "optimize_non_matrix_params": True, "skip_zero_grad_non_matrix_params": True,
    },
    "Novograd": {
        "learning_rate": (1e-3, 0, INF), "beta1": (0.9, 0, 1), "beta2": (0.999, 0, 1), "epsilon": (1e-8, 1e-18, INF),
        "relative_decay": DECAY, "absolute_decay": DECAY,
    },
    "SGD": {"learning_rate": (1e-3, 0, INF), "l2_reg": (1e-8, 0, INF)},
    "ExponentialDecay": {
        "decay_base": (0.1, 0, INF), "decay_start": (10000, 0, INF), "decay_end": (10000000, 0, INF),
        "decay_interval": (10000, 1, INF), "nested": {},
    },
    "EMA": {"decay": (0.99, 0, 1), "full_precision": False, "nested": {}},
    "Batched": {"batch_size_multiplier": (16, 1, 2**32), "nested": {}},
    "Lookahead": {"alpha": (0.5, 0, INF), "n_steps": (16, 1, 2**32), "nested": {}},
}  # fmt: skip
#: Keys that take their default alone.
FIXED = {
    "stochastic_interpolation", "fixed_point_pos", "hash",
}  # fmt: skip


def test_keys_and_their_limits():
    found = (
        {name: keys for name, (_, keys) in encodings.ENCODINGS.items()} | {"MLP": networks.KEYS} | optimizers.OPTIMIZERS
    )
    assert {name: set(keys) for name, keys in found.items()} == {name: set(keys) for name, keys in DEFAULTS.items()}
    for name, keys in DEFAULTS.items():
        for key, wanted in keys.items():
            read, default = found[name][key].read, found[name][key].default
            if not isinstance(wanted, tuple):
                assert default == wanted and type(default) is type(wanted), (name, key)
            else:
                number, least, below = wanted
                assert default == number and type(default) is type(number), (name, key)
                before = (lambda n: n - 1) if isinstance(number, int) else (lambda x: math.nextafter(x, -INF))
                if least is not None:
                    assert read(least, key) == least
                    with pytest.raises(ValueError, match=f"^from_config: {key} is .*; at least {least}"):
                        read(before(least), key)
                if below < INF:
                    with pytest.raises(ValueError, match=f"and less than {below} is needed"):
                        read(below, key)
                    assert read(before(below), key) == before(below)
                elif key not in FIXED:
                    assert read(2**70, key) == 2**70
            if key in FIXED:
                other = {bool: not default, float: 0.5, str: "Other"}[type(default)]
                with pytest.raises(ValueError, match=f"^from_config: {key} is .*, which has no counterpart here"):
                    read(other, key)
                assert read(default.lower() if isinstance(default, str) else default, key) in (default, "coherentprime")


def test_wrapped_optimizers():
    def read(*otypes, **last):
        nested = {"otype": otypes[-1]} | last
        for name in otypes[-2::-1]:
            nested = {"otype": name, "nested": nested}
        return cn.from_config(2, 3, IDENTITY | {"optimizer": nested})

    def pace(config):
        optimizer = config.optimizer()
        return optimizer.accumulate, optimizer.lookahead, optimizer.alpha

    assert pace(read("Adam")) == (1, 0, 0.5) and pace(read("Batched")) == (16, 0, 0.5)
    assert pace(read("Lookahead")) == (1, 16, 0.5)
    both = read("EMA", "Batched", "SGD", l2_reg=0.5)
    assert both.ema == 0.99 and pace(both) == (16, 0, 0.5) and both.optimizer().l2_reg == 0.5
    assert pace(read("Batched", "Lookahead", "SGD")) == (16, 16, 0.5)
    # inference takes the average of slow weights, or slow weights instead of an average
    assert read("EMA", "ExponentialDecay", "Lookahead").ema == 0.99 == read("EMA", "Adam").ema
    inside = read("Lookahead", "ExponentialDecay", "EMA")
    assert inside.ema is None and pace(inside) == (1, 16, 0.5)
    assert pace(read("Lookahead", "Novograd")) == (1, 16, 0.5) and pace(read("Batched", "Novograd")) == (16, 0, 0.5)
    given = {"otype": "Lookahead", "alpha": 0.25, "n_steps": 4, "nested": {"otype": "Adam", "learning_rate": 0.5}}
    config = cn.from_config(2, 3, IDENTITY | {"optimizer": given})
    assert pace(config) == (1, 4, 0.25) and config.lr == 0.5
    # a decay counts the steps of what is inside it
    outside, inside = read("ExponentialDecay", "Batched"), read("Batched", "ExponentialDecay")
    assert [outside.lr(s) for s in (9999, 10000)] == pytest.approx([1e-3, 1e-4])
    assert [inside.lr(s) for s in (159999, 160000)] == pytest.approx([1e-3, 1e-4])


@pytest.mark.parametrize("name", networks.ACTIVATIONS)
def test_activations(ns, backend, name):
    """By their formulas in tiny-cuda-nn's documentation."""
    functions = {
        "None": lambda x: x, "ReLU": lambda x: np.maximum(x, 0), "LeakyReLU": lambda x: np.where(x > 0, x, 0.01 * x),
        "SiLU": lambda x: x / (1 + np.exp(-x)), "Exponential": np.exp, "Sine": np.sin, "Tanh": np.tanh,
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Softplus": lambda x: np.log(np.exp(10 * x) + 1) / 10,
        "Squareplus": lambda x: 0.5 * (10 * x + np.sqrt(100 * x * x + 4)) / 10,
    }  # fmt: skip
    given = {"otype": "CutlassMLP", "n_neurons": 8, "n_hidden_layers": 1, "output_activation": name.upper()}
    if backend == "cuda" and name != "Squareplus":
        pytest.skip("the same arithmetic as on LLVM, but for this one, which is computed in single precision")
    field = cn.from_config(2, 1, IDENTITY | {"network": given}).field.allocate(ns.TensorXf, "single")
    w = [layer.weights.numpy() for layer in children(field.network) if isinstance(layer, cn.Linear)]
    x = np.random.default_rng(0).uniform(-1, 1, (2, 20)).astype(np.float32)
    y = field.network(ns.TensorXf(x)).numpy()
    np.testing.assert_allclose(y, functions[name](ref.mlp(w, x, "relu")), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("pad, n_in", [("none", 40), ("tcnn", 48)])
@pytest.mark.parametrize("depth", [0, 2])
def test_sine_networks_start_as_siren(ns, pad, n_in, depth):
    given = {"otype": "CutlassMLP", "activation": "Sine", "n_neurons": 90, "n_hidden_layers": depth}
    field = cn.from_config(40, 30, IDENTITY | {"network": given}, pad=pad).field.allocate(ns.TensorXf, "single")
    first, *others = (m.weights.numpy() for m in children(field.network) if isinstance(m, cn.Linear))
    assert first.shape[1] == n_in and len(others) == depth
    for w, bound in ((first, 30 / n_in), *((w, np.sqrt(6 / 90)) for w in others)):
        assert 0.97 * bound < np.abs(w).max() <= bound * (1 + 1e-6)


@pytest.mark.parametrize("name", sorted(set(losses.LOSSES) - {"Huber", "SmoothL1"}))  # see test_json_files.py
def test_losses(name):
    config = cn.from_config(2, 3, IDENTITY | {"loss": {"otype": name.swapcase()}})
    called = config.loss if isinstance(config.loss, str) else config.loss.__name__
    assert config.loss is losses.LOSSES[name] and called in cn.training.LOSSES
    assert called.replace("_", "") == name.lower()


@pytest.mark.parametrize("name", ["L1", "RelativeL1", "MAPE", "SMAPE", "LogL1"])
def test_where_prediction_and_target_are_equal(ns, name):
    """``copysignf(scale, difference)`` of ``l1.h`` and its relatives: the sign of 0 is that of a positive error."""
    loss = cn.from_config(2, 2, IDENTITY | {"loss": {"otype": name}}).loss
    ours = cn.training.LOSSES[loss.__name__]
    y = np.float32([[0.5, 0.5, 0.5, -2], [1, 0, 3, 4]])
    t = np.float32([[0.5, 0.25, 0.75, -2], [1, 0, 3, 5]])
    pdf = np.float32([0.5, 1, 2, 4])

    def gradient(f):
        parts = [ns.Float(v) for v in y]
        dr.enable_grad(parts)
        value = f(parts, [ns.Float(v) for v in t], pdf=ns.Float(pdf))
        dr.backward(value)
        return value.numpy(), np.stack([dr.grad(v).numpy() for v in parts])

    divisors = {"RelativeL1": abs(y) + 0.01, "MAPE": abs(t) + 0.01, "SMAPE": 0.5 * (abs(y) + abs(t)) + 0.01}
    scale = 1 / (divisors.get(name, 1 + abs(y - t) if name == "LogL1" else 1) * pdf * len(y))
    value, slope = gradient(loss)
    np.testing.assert_allclose(slope, np.copysign(scale, y - t), rtol=1e-5)
    np.testing.assert_array_equal(value, gradient(ours)[0])
    assert (gradient(ours)[1][y == t] == 0).all() and (slope[y == t] > 0).all()


def encoding(given, n_in=3):
    return cn.from_config(n_in, 1, {"encoding": given}).field.encoding


def arguments(layer, **expected):
    return {k: getattr(layer, k) for k in expected} == expected


def test_frequency():
    assert type(encoding({"otype": "Frequency"})).__name__ == "Frequency"
    assert arguments(encoding({"otype": "Frequency"}), n_frequencies=12)
    assert arguments(encoding({"otype": "TriangleWave", "n_frequencies": 4}), n_frequencies=4)


def test_one_blob():
    assert arguments(encoding({"otype": "OneBlob", "n_bins": 32}), n_bins=32, periodic=False)
    assert arguments(encoding({"otype": "NRC"}, 8).nested[1], n_bins=4, periodic=False)


def quartic_cdf(x, inv_radius):
    """That of tiny-cuda-nn's ``common_device.h``."""
    u = x * inv_radius
    inside = 15 / 16 * u * (1 - 2 / 3 * u**2 + 1 / 5 * u**4) + 0.5
    return np.where(np.abs(u) < 1, inside, np.where(u > 0, 1.0, 0.0))


@pytest.mark.parametrize("n", [1, 2, 8, 16])
def test_one_blob_outside_the_unit_interval(ns, n):
    """``oneblob.h``: blobs at x - 1, x and x + 1, and no others. Within about [-1, 2], that is the periodic one."""
    x = np.concatenate([np.linspace(-2.5, 3.5, 121), [-1 - 0.5 / n, 2 + 0.5 / n, 1e9, -1e9]]).astype(np.float32)
    edges = np.arange(n + 1)[:, None] / n - x.astype(np.float64)
    expected = np.diff(sum(quartic_cdf(edges + m, n) for m in (-1, 0, 1)), axis=0)
    one = encoding({"otype": "OneBlob", "n_bins": n}, 1)
    np.testing.assert_allclose(values(one([ns.Float(x)])), expected, atol=2e-6)
    near = (x >= -1 + 1 / n) & (x <= 2 - 1 / n)
    periodic = values(cn.OneBlob(n)([ns.Float(x)]))
    np.testing.assert_allclose(periodic[:, near], expected[:, near], atol=2e-6)
    assert n == 1 or np.abs(periodic - expected)[:, x == 2].max() == pytest.approx(0.5)
    assert arguments(encoding({}), n_bins=16)  # the default


def test_spherical_harmonics():
    assert arguments(encoding({"otype": "SphericalHarmonics", "degree": 3}), degree=3)
    with pytest.raises(ValueError, match="directions, which have 3 coordinates, but there are 2"):
        encoding({"otype": "SphericalHarmonics"}, 2)


def test_scaled_identity():
    assert arguments(encoding({"otype": "Identity", "scale": 2, "offset": -1}), scale=2.0, offset=-1.0)
    for scale, offset in ((1, -1), (1, 1), (2, 0), (0, 0)):
        scaled = encoding({"otype": "Identity", "scale": scale, "offset": offset})
        assert arguments(scaled, scale=scale, offset=offset)
    assert repr(encoding({"otype": "Identity", "scale": 1, "offset": 0})) == repr(cn.Identity())


def test_grids():
    for name in ("Grid", "HashGrid", "TiledGrid", "DenseGrid"):
        grid = encoding({"otype": name, "n_levels": 4, "interpolation": "Smoothstep"})
        storage = {"Grid": "hash", "HashGrid": "hash", "TiledGrid": "tiled", "DenseGrid": "dense"}[name]
        scale = (256 / 16) ** (1 / 3) if storage == "dense" else 2.0
        assert arguments(grid, storage=storage, interpolation="smoothstep", hashmap_size=2**19)
        assert grid.per_level_scale == pytest.approx(scale)
    assert arguments(encoding({"otype": "Grid", "type": "Dense", "per_level_scale": 1.5}), storage="dense")
    assert encoding({"otype": "Grid", "type": "Dense", "per_level_scale": 1.5}).per_level_scale == 1.5
    assert encoding({"otype": "DenseGrid", "n_levels": 1}).per_level_scale == 2.0
    assert encoding({"otype": "DenseGrid", "base_resolution": 512}).per_level_scale == pytest.approx(0.5 ** (1 / 15))
    assert encoding({"otype": "DenseGrid", "n_levels": 2}).per_level_scale == 16.0
    sizes = {"n_levels": 3, "n_features_per_level": 4, "base_resolution": 5, "log2_hashmap_size": 6}
    grid = encoding({"otype": "Grid", "per_level_scale": 1.25, "interpolation": "Nearest"} | sizes)
    assert arguments(grid, n_levels=3, n_features_per_level=4, base_resolution=5, hashmap_size=64, in_features=3)
    assert grid.per_level_scale == 1.25 and grid.interpolation == "nearest"
    assert encoding({"otype": "Grid", "per_level_scale": 0.5}).per_level_scale == 0.5
    assert encoding({"otype": "Grid", "type": "tile"}).storage == "tiled"
    for given in ({"n_features": 12}, {"n_grid_features": 12}, {"n_features": 12, "n_grid_features": 5}):
        assert encoding({"otype": "Grid", "n_features_per_level": 4} | given).n_levels == 3
    assert encoding({"otype": "Grid", "log2_hashmap_size": 1, "n_features_per_level": 8}).hashmap_size == 2


def test_composite(ns):
    nested = [
        {"otype": "TriangleWave", "n_dims_to_encode": 3, "n_frequencies": 12},
        {"otype": "OneBlob", "n_dims_to_encode": 5, "n_bins": 4},
        {"otype": "Identity"},
    ]
    whole = encoding({"otype": "Composite", "nested": nested}, 10)
    assert [type(e).__name__ for e in whole.nested] == ["TriangleWave", "OneBlob", "Identity"]
    assert tuple(whole.n_dims_to_encode) == (3, 5, 2)
    assert repr(encoding({"otype": "NRC"}, 10)) == repr(whole)
    assert whole.width(10) == 3 * 12 + 5 * 4 + 2
    assert len(encoding({"otype": "NRC"}, 8).nested) == 2  # nothing is left for the identity
    placed = [
        {"otype": "OneBlob", "n_dims_to_encode": 2, "dims_to_encode_begin": 1, "n_bins": 4},
        {"otype": "OneBlob", "n_dims_to_encode": 2, "dims_to_encode_begin": 0, "n_bins": 4},
    ]
    both = encoding({"otype": "Composite", "nested": placed, "reduction": "Sum"}, 3)
    assert tuple(both.dims_to_encode_begin) == (1, 0) and both.reduction == "sum" and both.width(3) == 8


def test_a_composite_of_one_is_that_one():
    assert isinstance(encoding({"otype": "Composite", "nested": [{"otype": "Identity"}]}), cn.Identity)
    one, none = {"otype": "Identity", "n_dims_to_encode": 1}, {"otype": "OneBlob", "n_dims_to_encode": 0}
    assert isinstance(encoding({"otype": "Composite", "nested": [none, one, none]}, 1), cn.Identity)
    for begin in (0, 1):  # but not if it leaves coordinates out
        part = encoding({"otype": "Composite", "nested": [one | {"dims_to_encode_begin": begin}]}, 2)
        assert tuple(part.dims_to_encode_begin) == (begin,) and part.width(2) == 1


def test_encodings_of_single_coordinates():
    nested = [{"otype": "OneBlob", "n_dims_to_encode": 1, "n_bins": n} for n in (2, 3)]
    both = encoding({"otype": "Composite", "nested": nested}, 2)
    assert tuple(both.n_dims_to_encode) == (1, 1) and [e.n_bins for e in both.nested] == [2, 3]


def test_what_a_layer_refuses_names_its_place():
    nested = [{"otype": "Identity", "n_dims_to_encode": 1}, {"otype": "OneBlob", "n_bins": 2**20}]
    with pytest.raises(ValueError, match=r"^from_config: encoding\.nested\[1\]: OneBlob: n_bins is 1048576"):
        encoding({"otype": "Composite", "nested": nested})
    with pytest.raises(ValueError, match=r"^from_config: encoding: SphericalHarmonics: "):
        encoding({"otype": "SphericalHarmonics", "degree": 99})


@pytest.mark.parametrize("name", ["FullyFusedMLP", "MegakernelMLP"])
def test_sizes_of_fused_networks(name):
    def network(width, depth, name=name):
        return cn.from_config(2, 1, {"network": {"otype": name, "n_neurons": width, "n_hidden_layers": depth}})

    for width in (16, 32, 64, 128):
        assert repr(network(width, 1).field.network) == repr(cn.MLP(-1, 1, width, 1))
    for width, depth in ((8, 1), (48, 1), (256, 1), (16, 0)):
        with pytest.raises(ValueError, match=rf"n_neurons {width} and n_hidden_layers {depth}; {name} has 16, 32"):
            network(width, depth)
        for other in ("MLP", "CutlassMLP"):
            assert repr(network(width, depth, other).field.network) == repr(cn.MLP(-1, 1, width, depth))


# ---- What is refused ----------------------------------------------------------------------------------------

ADAM = {"otype": "Adam"}
REFUSED = [
    ({"netwrok": {}}, r"the configuration has the unknown key 'netwrok'; did you mean 'network'\?"),
    ({"hyperparams": {}}, r"unknown key 'hyperparams'; known are encoding, network, loss, optimizer\."),
    ({"envmap": {}}, r"section 'envmap', which is not read: it belongs to instant-ngp's radiance fields; make a field"),
    ({"network": []}, r"network is \[\]; an object is needed"),
    ({"network": {"otype": "FullyFusedMlpp"}}, r"'FullyFusedMlpp', which is unknown; did you mean 'FullyFusedMLP'\?"),
    ({"network": {"n_neurons": 10**30}}, r"network\.n_neurons is 10+; at least 1 and less than 65536"),
    ({"network": {"n_hidden_layers": 10**9}}, r"network\.n_hidden_layers is 1000000000; at least 0 and less than 1024"),
    ({"network": {"otype": 3}}, r"network\.otype is 3; a string"),
    ({"network": {"n_neuron": 3}}, r"network has the unknown key 'n_neuron'; did you mean 'n_neurons'\?"),
    ({"network": {"n_neurons": "64"}}, r"network\.n_neurons is '64'; an integer"),
    ({"network": {"n_neurons": 64.5}}, r"network\.n_neurons is 64\.5; an integer"),
    ({"network": {"n_neurons": True}}, r"network\.n_neurons is True; an integer"),
    ({"network": {"n_neurons": 0}}, r"network\.n_neurons is 0; at least 1"),
    ({"network": {"activation": 1}}, r"network\.activation is 1; a string"),
    ({"network": {"activation": "ReLu6"}}, r"network\.activation is 'ReLu6', which is unknown; did you mean 'ReLU'\?"),
    ({"network": {"otype": "FullyFusedMLP", "n_neurons": 48}}, r"n_neurons 48 .*16, 32, 64 or 128 neurons"),
    ({"network": {"otype": "FullyFusedMLP", "n_hidden_layers": 0}}, "a hidden layer. Use CutlassMLP"),
    ({"loss": {"otype": "RelativeL3"}}, r"loss\.otype is 'RelativeL3', which is unknown; did you mean 'RelativeL"),
    ({"loss": {"otype": "L2", "scale": 1}}, r"loss has the unknown key 'scale'"),
    ({"loss": {"otype": "RelativeL2Luminance"}}, r"'RelativeL2Luminance', which needs at least 3 outputs, not 1"),
    ({"encoding": {"otype": "Hashgrid2"}}, r"encoding\.otype is 'Hashgrid2', .* did you mean 'HashGrid'\?"),
    ({"encoding": {"otype": "Empty"}}, r"'Empty', which has no counterpart here: an encoding without features"),
    ({"encoding": {"otype": "HashGrid", "log2_hashmap": 3}}, r"'log2_hashmap'; did you mean 'log2_hashmap_size'\?"),
    (
        {"encoding": {"otype": "HashGrid", "fixed_point_pos": True}},
        r"fixed_point_pos is True, .*floating point numbers",
    ),
    ({"encoding": {"otype": "HashGrid", "hash": "Rng"}}, r"encoding\.hash is 'Rng', which has no counterpart here"),
    ({"encoding": {"otype": "Grid", "type": "Sparse"}}, r"encoding\.type is 'Sparse', which is unknown"),
    ({"encoding": {"otype": "Grid", "interpolation": "Cubic"}}, r"encoding\.interpolation is 'Cubic'"),
    ({"encoding": {"otype": "Grid", "per_level_scale": 0}}, r"encoding: Grid: per_level_scale is 0\.0; a positive"),
    ({"encoding": {"otype": "Grid", "n_features": 8, "n_levels": 4}}, "has n_features and n_levels; one follows from"),
    ({"encoding": {"otype": "Grid", "n_features": 7}}, r"n_features is 7; a multiple of n_features_per_level, 2, is"),
    ({"encoding": {"otype": "Grid", "n_grid_features": 0}}, r"n_grid_features is 0; a multiple of"),
    ({"encoding": {"otype": "Composite"}}, r"encoding\.nested is \[\]; a list"),
    ({"encoding": {"otype": "Composite", "nested": [1]}}, r"encoding\.nested\[0\] is 1; an object"),
    (
        {"encoding": {"otype": "Composite", "nested": [{"otype": "Identity"}, {"otype": "Identity"}]}},
        r"nested\[0, 1\] have no n_dims_to_encode",
    ),
    (
        {"encoding": {"otype": "Composite", "nested": [{"otype": "Identity", "n_dims_to_encod": 1}, {}]}},
        r"nested\[0\] has the unknown key 'n_dims_to_encod'; did you mean 'n_dims_to_encode'\?",
    ),
    (
        {"encoding": {"otype": "Composite", "nested": [{"otype": "Identity", "n_dims_to_encode": 5}]}},
        r"nested encode 5 coordinates, but there are 2",
    ),
    (
        {"encoding": {"otype": "Composite", "nested": [{"otype": "identty", "n_dims_to_encode": 2}]}},
        r"encoding\.nested\[0\]\.otype is 'identty', which is unknown; did you mean 'Identity'\?",
    ),
    ({"optimizer": {"otype": "Adamm"}}, r"optimizer\.otype is 'Adamm', which is unknown; did you mean 'Adam'\?"),
    ({"optimizer": ADAM | {"beta_1": 0.9}}, r"optimizer has the unknown key 'beta_1'; did you mean 'beta1'\?"),
    ({"optimizer": ADAM | {"beta1": 1.0}}, r"optimizer\.beta1 is 1\.0; at least 0 and less than 1"),
    ({"optimizer": ADAM | {"adabound": 0}}, r"optimizer\.adabound is 0; true or false"),
    ({"optimizer": ADAM | {"epsilon": 0}}, r"optimizer\.epsilon is 0\.0; at least 1e-18"),
    ({"optimizer": ADAM | {"learning_rate": -1}}, r"learning_rate is -1\.0; at least 0"),
    ({"optimizer": ADAM | {"learning_rate": float("nan")}}, r"learning_rate is nan; a number"),
    ({"optimizer": {"otype": "Shampoo"}}, r"'Shampoo', which has no counterpart here: .*Muon"),
    (
        {"optimizer": {"otype": "EMA", "nested": {"otype": "Average"}}},
        r"optimizer\.nested\.otype is 'Average', which has no counterpart",
    ),
    ({"optimizer": {"otype": "Batched", "nested": {"otype": "EMA"}}}, r"is EMA inside Batched, .* put EMA around"),
    ({"optimizer": {"otype": "Lookahead", "nested": {"otype": "Batched"}}}, r"is Batched inside Lookahead, .* around"),
    ({"optimizer": {"otype": "Batched", "batch_size": 2}}, r"'batch_size'; did you mean 'batch_size_multiplier'\?"),
    (
        {"optimizer": {"otype": "Lookahead", "n_steps": 0}},
        r"optimizer\.n_steps is 0; at least 1",
    ),
    (
        {"optimizer": {"otype": "EMA", "nested": {"otype": "EMA"}}},
        r"optimizer\.nested is a second EMA around one optimizer",
    ),
    ({"optimizer": {"otype": "EMA", "nested": "Adam"}}, r"optimizer\.nested is 'Adam'; an object"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(given, message):
    with pytest.raises(ValueError, match="from_config: .*" + message):
        cn.from_config(2, 1, IDENTITY | given)


@pytest.mark.parametrize("name", ["Average", "Composite", "Shampoo"])
def test_optimizers_without_a_counterpart_say_why(name):
    with pytest.raises(ValueError, match=f"'{name}', which has no counterpart here: "):
        cn.from_config(2, 1, IDENTITY | {"optimizer": {"otype": name}})


def test_errors_of_arguments(tmp_path):
    for bad in (0, True, 2.0, "2"):
        with pytest.raises(ValueError, match="from_config: n_in is"):
            cn.from_config(bad, 1, IDENTITY)
        with pytest.raises(ValueError, match="from_config: n_out is"):
            cn.from_config(1, bad, IDENTITY)
    with pytest.raises(TypeError, match="config is a list"):
        cn.from_config(1, 1, [])
    with pytest.raises(ValueError, match="config is not JSON"):
        cn.from_config(1, 1, '{"encoding": }')
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"list\.json holds a list; an object"):
        cn.from_config(1, 1, tmp_path / "list.json")
    with pytest.raises(FileNotFoundError):
        cn.from_config(1, 1, tmp_path / "none.json")


def test_all_is_documented():
    text = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    names = {*encodings.ENCODINGS, *encodings.NO_ENCODINGS, *networks.NETWORKS, *networks.ACTIVATIONS, *losses.LOSSES}
    names |= {*optimizers.OPTIMIZERS, *optimizers.NO_OPTIMIZERS, *networks.KEYS, *encodings.DIMS}
    for keys in [keys for _, keys in encodings.ENCODINGS.values()] + list(optimizers.OPTIMIZERS.values()):
        names |= set(keys)
    assert not [name for name in sorted(names) if f"`{name}`" not in text]
    assert not [name for name in losses.LOSSES.values() if isinstance(name, str) and f'`"{name}"`' not in text]


def test_it_is_alive_on_the_device(ns, backend):
    """A configuration's field can be called."""
    field = cn.from_config(3, 2, IDENTITY | {"network": {"otype": "FullyFusedMLP", "n_neurons": 16}}).field.build(
        backend
    )
    y = field([ns.Float(0.5)] * 3)
    dr.eval(y)
    assert len(y) == 2


#: By section: number keys, the least value that is accepted, and the first too large one.
BOUNDS = {
    "Adam": {
        "learning_rate": (0.0, None), "beta1": (0.0, 1.0), "beta2": (0.0, 1.0), "epsilon": (1e-18, None),
        "l2_reg": (0.0, None), "relative_decay": (0.0, None), "absolute_decay": (0.0, None),
        "non_matrix_l2_reg": (0.0, None), "non_matrix_learning_rate_factor": (0.0, None),
        "clipping_magnitude": (0.0, None), "gradient_clipping_magnitude": (0.0, None),
    },
    "Novograd": {
        "learning_rate": (0.0, None), "beta1": (0.0, 1.0), "beta2": (0.0, 1.0), "epsilon": (1e-18, None),
        "relative_decay": (0.0, None), "absolute_decay": (0.0, None),
    },
    "SGD": {"learning_rate": (0.0, None), "l2_reg": (0.0, None)},
    "ExponentialDecay": {
        "decay_base": (0.0, None), "decay_start": (0, None), "decay_end": (0, None), "decay_interval": (1, None),
    },
    "EMA": {"decay": (0.0, 1.0)},
    "Batched": {"batch_size_multiplier": (1, 2**32)},
    "Lookahead": {"alpha": (0.0, None), "n_steps": (1, 2**32)},
    "CutlassMLP": {"n_neurons": (1, 2**16), "n_hidden_layers": (0, 2**10)},
    "HashGrid": {
        "n_levels": (1, None), "n_features_per_level": (1, None), "log2_hashmap_size": (0, 32),
        "base_resolution": (1, None),
    },
    "Frequency": {"n_frequencies": (1, None)},
    "TriangleWave": {"n_frequencies": (1, None)},
    "OneBlob": {"n_bins": (1, None)},
}  # fmt: skip


@pytest.mark.parametrize("otype, key", [(otype, key) for otype, keys in BOUNDS.items() for key in keys])
def test_bounds_of_numbers(otype, key):
    section = "network" if "MLP" in otype else "optimizer" if otype in optimizers.OPTIMIZERS else "encoding"
    least, beyond = BOUNDS[otype][key]

    def read(value):
        return cn.from_config(2, 1, {section: {"otype": otype, key: value}})

    assert read(least)
    below = least - 1 if isinstance(least, int) else float(np.nextafter(least, -1))
    with pytest.raises(ValueError, match=rf"{section}\.{key} is .*at least {least:g}"):
        read(below)
    if beyond is not None:
        assert read(beyond - 1 if isinstance(least, int) else float(np.nextafter(beyond, 0)))
        with pytest.raises(ValueError, match=rf"{section}\.{key} is .*less than {int(beyond)}"):
            read(beyond)


@pytest.mark.parametrize(
    "otype, fused", [("FullyFusedMLP", True), ("MegakernelMLP", True), ("CutlassMLP", False), ("MLP", False)]
)
def test_widths_of_networks(otype, fused):
    """The fused ones have four widths and at least one hidden layer."""

    def widths(depth):
        found = []
        for width in (8, 16, 31, 32, 48, 64, 96, 128, 256):
            try:
                cn.from_config(2, 1, {"network": {"otype": otype, "n_neurons": width, "n_hidden_layers": depth}})
            except ValueError:
                continue
            found.append(width)
        return found

    assert widths(1) == ([16, 32, 64, 128] if fused else [8, 16, 31, 32, 48, 64, 96, 128, 256])
    assert bool(widths(0)) != fused
