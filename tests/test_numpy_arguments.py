"""Numbers of NumPy, as a sweep over np.arange() makes them, are numbers of Python: for networks, runs and pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coopnet as cn
from coopnet.checks import is_int, is_number, whole

INT, FLOAT = np.int64, np.float32

PAIRS = {
    "Linear": (lambda i, f: cn.Linear(i(2), i(3), gain=f(0.5))),
    "MLP": (lambda i, f: cn.MLP(i(-1), i(3), width=i(16), depth=i(2), dropout=f(0.25))),
    "SIREN": (lambda i, f: cn.SIREN(i(2), i(3), width=i(16), depth=i(2), omega_0=f(30), omega=f(20))),
    "HashGrid": (lambda i, f: cn.HashGrid(i(2), i(4), i(2), i(1024), base_resolution=i(4), per_level_scale=f(1.5))),
    "Sinusoidal": (lambda i, f: cn.Sinusoidal(i(4), f(0.5), in_features=i(2))),
    "OneBlob": (lambda i, f: cn.OneBlob(i(8), in_features=i(2))),
    "SphericalHarmonics": (lambda i, f: cn.SphericalHarmonics(i(4))),
    "Fourier": (lambda i, f: cn.Fourier(i(8), f(2), seed=i(3))),
    "Embedding": (lambda i, f: cn.Embedding(i(10), i(4), init_scale=f(0.5))),
    "Composite": (lambda i, f: cn.Composite([cn.Sinusoidal(2), cn.OneBlob(4)], [i(1), i(2)], [i(0), i(1)])),
    "DropLevels": (lambda i, f: cn.DropLevels(f(0.25), first=i(1), n_features_per_level=i(2))),
    "SparseProjection": (lambda i, f: cn.SparseProjection(i(64), i(8), f(0.25), i(1))),
    "ConcreteDropout": (lambda i, f: cn.ConcreteDropout(f(0.25), f(0.5), rounds=i(7))),
    "LeakyReLU": (lambda i, f: cn.LeakyReLU(f(0.25))),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_layers(name):
    given, plain = PAIRS[name](INT, FLOAT), PAIRS[name](int, float)
    assert repr(given) == repr(plain)
    kinds = {k: type(v) for k, v in vars(plain).items()}
    assert {k: type(v) for k, v in vars(given).items()} == kinds


def test_sizes_that_do_not_fit_their_type():
    """Products and sums of checked numbers are those of Python."""
    grid = cn.HashGrid(2, n_features_per_level=np.int8(2))
    assert repr(grid) == repr(cn.HashGrid(2, n_features_per_level=2))
    for make in (
        lambda i: cn.Embedding(i(2**20), i(2**13)),
        lambda i: cn.OneBlob(i(2**30), in_features=i(8)),
        lambda i: cn.Fourier(i(2**31 - 1)),
        lambda i: cn.nn.Pad(None, i(2**31 - 1), i(2**31 - 1)),
    ):
        messages = []
        for kind in (np.int32, int):
            with pytest.raises(ValueError) as error:
                make(kind)
            messages.append(str(error.value))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64])
def test_whole_and_number(kind):
    assert whole(kind(3)) == 3 and type(whole(kind(3))) is int
    assert is_int(kind(3), 3, 3) and not is_int(kind(3), 4) and is_number(kind(3), 3)
    assert is_number(np.float16(0.5)) and not is_int(np.float64(3)) and not is_number(np.float32("nan"))
    for value in (np.bool_(True), np.array(3), np.array([3]), "3", None):
        assert whole(value) is None and not is_int(value) and not is_number(value)


def test_runs(backend, ns, tmp_path):
    """A run with such numbers is the same to the bit; what JSON has to hold is written."""

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 64)
        return [x, y], [x * y]

    def run(i, f, path):
        network = cn.MLP(i(2), i(1), width=i(16), depth=i(1), dropout=f(0.125))
        field = cn.NeuralField(None, network, in_features=i(2)).build(backend, seed=i(3))
        cn.fit(
            field, batch, i(4), lr=f(0.125), seed=i(5), weight_decay=f(0.5), clip_norm=f(0.25),
            metric=lambda field: f(1), metric_every=i(2), patience=i(50),
            optimizer=cn.training.Adam(f(1), accumulate=i(1)), checkpoint=path, progress=False,
        )  # fmt: skip
        json.dumps(cn.io.describe(field))
        assert field.explain(i(100), steps=i(4)) is not None
        return field.matrix("network.layers.0.weights")

    np.testing.assert_array_equal(
        run(INT, FLOAT, tmp_path / "a.safetensors"), run(int, float, tmp_path / "b.safetensors")
    )
