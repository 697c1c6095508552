"""Arguments that are left out: programs, configurations and checkpoints count on what they mean."""

from __future__ import annotations

import inspect
from operator import attrgetter

import drjit.nn as drnn
import pytest

import coopnet as cn

LATTICE = {"in_features": -1, "n_levels": 16, "n_features_per_level": 2, "hashmap_size": 2**19, "init_scale": 1e-4}
DEFAULTS = {
    "Composite": {"nested": (), "reduction": "concatenation", "in_features": -1},
    "Fourier": {"n_frequencies": 64, "scale": 10.0, "trained": False, "seed": 0, "in_features": -1},
    "Frequency": {"n_frequencies": 12, "in_features": -1},
    "Grid": {**LATTICE, "storage": "hash", "base_resolution": 16, "per_level_scale": None, "interpolation": "linear"},
    "HashGrid": {**LATTICE, "base_resolution": 16, "per_level_scale": 2.0, "interpolation": "linear"},
    "Permutohedral": {**LATTICE, "base_resolution": 16, "per_level_scale": 2.0},
    "OneBlob": {"n_bins": 16, "in_features": -1},
    "SIREN": {"in_features": -1, "out_features": 1, "width": 64, "depth": 3, "omega_0": 30.0, "omega": 30.0},
    "SphericalHarmonics": {"degree": 4},
    "TriangleWave": {"n_frequencies": 12, "in_features": -1},
    "Sinusoidal": {"octaves": 8, "shift": 0.0, "in_features": -1},
    "Triangular": {"octaves": 8, "shift": 0.0, "in_features": -1},
    "SparseProjection": {"in_features": -1, "out_features": 64, "density": 1 / 3, "seed": 0},
    "Embedding": {
        "count": 1, "width": 1, "init_scale": 0.01, "precision": "auto", "output": "float32", "out_of_range": "zero",
        "check": True, "deterministic": True, "prefix": "",
    },
    "MLP": {
        "in_features": -1, "out_features": -1, "width": 64, "depth": 3, "activation": "relu", "output_activation": None,
        "dropout": 0.0, "bias": False, "init": "xavier_uniform", "zero_last": False,
    },
    "Linear": {"in_features": -1, "out_features": -1, "bias": True, "init": "xavier_uniform", "gain": 1.0},
    "Identity": {"scale": 1.0, "offset": 0.0},
    "LeakyReLU": {"negative_slope": 0.01},
    "Sine": {"omega": 1.0},
    "Softplus": {"beta": 1.0},
    "Squareplus": {"beta": 1.0},
    "Sequential": {"prefix": ""},
    "Dropout": {"p": 0.5, "bits": 16, "stream": None},
    "DropPath": {"p": 0.5, "bits": 16, "stream": None},
    "GaussianDropout": {"p": 0.5, "stream": None},
    "dropout": {"stream": 0, "bits": 16},
    "dropout_mask": {"stream": 0, "bits": 16},
    "philox4x32": {"rounds": 10},
    "Key": {"index": None, "step": 0},
    "Module.alloc": {"size": -1, "rng": None},
    "NeuralField": {"output": "float32", "in_features": -1},
    "NeuralField.build": {"backend": "auto", "precision": "auto", "seed": 0},
    "NeuralField.explain": {"frozen": True},
    "deterministic": {"enabled": True},
    "uniform": {"stream": 0},
    "load": {"backend": "auto", "precision": "auto"},
    "fit": {
        "loss": "l2", "seed": 0, "weight_decay": 0.0, "metric_every": 100, "higher_is_better": True,
        "checkpoint_every": 60.0, "resume": False, "progress": True,
    },
    "from_config": {"unknown": "error"},
    "training.EMA": {"decay": 0.999},
    "training.cosine": {"warmup": 0, "final": 0.0},
    "training.exponential": {"every": 1, "start": 0},
    "training.huber": {"delta": 1.0},
    "training.l1_penalty": {"biases": False},
    "training.l2_penalty": {"biases": False},
    "training.clip_weights": {"biases": False},
    "training.decay_weights": {"biases": False},
    "training.decay_masks": {"biases": False},
    "training.Novograd": {
        "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "relative_decay": 0.0, "absolute_decay": 0.0, "accumulate": 1,
        "lookahead": 0, "alpha": 0.5, "train_non_matrices": True,
    },
    "training.SGD": {"l2_reg": 0.0, "accumulate": 1, "lookahead": 0, "alpha": 0.5},
    "training.Adam": {
        "l2_reg": 0.0, "non_matrix_l2_reg": 0.0, "relative_decay": 0.0, "absolute_decay": 0.0, "accumulate": 1,
        "lookahead": 0, "alpha": 0.5, "skip_zero_grad": False, "non_matrix_lr_factor": 1.0, "train_matrices": True,
        "train_non_matrices": True, "gradient_limit": None, "weight_limit": None, "adabound": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    parameters = inspect.signature(attrgetter(name)(cn)).parameters
    found = {key: parameters[key].default for key in DEFAULTS[name]}
    assert repr(found) == repr(DEFAULTS[name])  # 1, 1.0 and True are not the same


def is_layer(thing):
    return inspect.isclass(thing) and issubclass(thing, drnn.Module)


@pytest.mark.parametrize("name", [n for n in DEFAULTS if is_layer(attrgetter(n)(cn))])
def test_what_is_left_out_is_kept(name):
    """A layer made without arguments holds the defaults, where it holds arguments as they are."""
    cls = attrgetter(name)(cn)
    made = cls()
    if name == "Linear":
        assert made.config == (-1, -1, True)
        return
    found = {key: getattr(made, key) for key in DEFAULTS[name] if key in cls.DRJIT_STRUCT}
    assert repr(found) == repr({key: DEFAULTS[name][key] for key in found})
