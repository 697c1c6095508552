"""Configurations in files that patch their parents, keys that are ignored, and the samples of the documentation."""

from __future__ import annotations

import json
import warnings

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet.interop.tcnn import json_files

BASE = {
    "loss": {"otype": "Huber"},
    "optimizer": {
        "otype": "Ema", "decay": 0.9,
        "nested": {
            "otype": "ExponentialDecay", "decay_start": 200, "decay_interval": 100, "decay_base": 0.5,
            "nested": {"otype": "Adam", "learning_rate": 1e-2, "beta2": 0.99, "epsilon": 1e-15, "l2_reg": 1e-6},
        },
    },
    "encoding": {"otype": "HashGrid", "n_levels": 4, "n_features_per_level": 4, "log2_hashmap_size": 12},
    "network": {"otype": "FullyFusedMLP", "activation": "ReLU", "n_neurons": 64, "n_hidden_layers": 1},
}  # fmt: skip
#: What a radiance field of instant-ngp has besides.
NERF = BASE | {
    "dir_encoding": {"otype": "Composite", "nested": [{"otype": "SphericalHarmonics", "n_dims_to_encode": 3}]},
    "rgb_network": {"otype": "FullyFusedMLP", "n_neurons": 64, "n_hidden_layers": 2},
    "distortion_map": {"resolution": [32, 32], "optimizer": {"otype": "Adam"}},
    "envmap": {"loss": {"otype": "RelativeL2"}},
}


def write(folder, **files):
    """Files with these names, where ``__`` stands for a folder, and the path of the last one."""
    for name, content in files.items():
        path = folder / (name.replace("__", "/") + ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_patches_its_parent(tmp_path):
    last = write(
        tmp_path,
        base=BASE,
        shared__wide={"parent": "../base.json", "network": {"n_neurons": 128}, "encoding": {"n_levels": 2}},
        last='{ // commas and comments\n"parent": "shared/wide.json", "optimizer": {"nested": {"nested": '
        '{"learning_rate": 3e-4, "l2_reg": null}}}, "encoding": {"n_levels": 3, "n_features_per_level": null},}',
    )
    for path in (last, str(last)):
        config = cn.from_config(2, 3, path)
        assert repr(config.field.network) == repr(cn.MLP(-1, 3, 128, 1))
        grid = config.field.encoding
        assert (grid.n_levels, grid.n_features_per_level, grid.hashmap_size) == (3, 2, 2**12)  # 2 is the default
        optimizer = config.optimizer()
        assert optimizer.lr == config.lr(0) == 3e-4 and optimizer.beta_2 == 0.99 and optimizer.l2_reg == 1e-8
        assert config.ema == 0.9 and config.lr(200) == 1.5e-4
    # by the path from another folder
    assert cn.from_config(2, 3, tmp_path / "shared" / "wide.json").field.encoding.n_levels == 2


#: Target, patch and result, as in the appendix of RFC 7386.
PATCHES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}), ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}), ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}), ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}), ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}), (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]), ({"a": "foo"}, None, None), ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}), ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]  # fmt: skip


@pytest.mark.parametrize(("target", "patch", "result"), PATCHES, ids=range(len(PATCHES)))
def test_merge_patches(target, patch, result):
    before = json.dumps(target)
    assert json_files.merged(target, patch) == result and json.dumps(target) == before


def test_errors_of_parents(tmp_path):
    for given in ({"parent": "base.json"}, '{"parent": "base.json"}', "// a\n" + '{"parent": null}'):
        with pytest.raises(ValueError, match=r"^from_config: the configuration has a 'parent', but only files"):
            cn.from_config(2, 3, given)
    with pytest.raises(ValueError, match=r"^from_config: '.*one\.json' is among its own parents"):
        cn.from_config(2, 3, write(tmp_path, one={"parent": "one.json"}))
    names = dict(a={"parent": "sub/b.json"}, sub__b={"parent": "../c.json"}, c={"parent": "./sub/../sub/b.json"})
    with pytest.raises(ValueError, match=r"^from_config: '.*b\.json' is among its own parents"):
        write(tmp_path, **names)
        cn.from_config(2, 3, tmp_path / "a.json")
    for bad in (None, 3, ["base.json"]):
        with pytest.raises(ValueError, match=r"^from_config: the parent of '.*bad\.json' is .*; a string is needed"):
            cn.from_config(2, 3, write(tmp_path, bad={"parent": bad}))
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        cn.from_config(2, 3, write(tmp_path, orphan={"parent": "none.json"}))
    for text, message in (("[1]", r"list\.json holds a list; an object"), ("{", r"list\.json is not JSON")):
        with pytest.raises(ValueError, match="^from_config: .*" + message):
            cn.from_config(2, 3, write(tmp_path, list=text, child={"parent": "list.json"}))


# ---- what is not known ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dir_encoding", "rgb_network", "distortion_map", "envmap", "snapshot"])
def test_sections_of_instant_ngp(name):
    with pytest.raises(
        ValueError, match=rf"^from_config: .* the section '{name}', which is not read: .*unknown='warn'"
    ):
        cn.from_config(3, 3, BASE | {name: {}})
    with pytest.warns(UserWarning, match=f"^from_config: ignored what is not known here: '{name}'.$"):
        cn.from_config(3, 3, BASE | {name: {}}, unknown="warn")


def test_what_a_patch_leaves_behind(tmp_path):
    """Keys of the parent's encoding, which its child replaces by another one."""
    path = write(tmp_path, base=NERF, child={"parent": "base.json", "encoding": {"otype": "Frequency", "n_freq": 3}})
    with pytest.raises(ValueError, match="has the section 'dir_encoding'"):
        cn.from_config(3, 3, path)
    with pytest.warns(UserWarning) as caught:
        config = cn.from_config(3, 3, path, unknown="warn")
    (warning,) = caught
    assert warning.filename == __file__
    text = str(warning.message)
    left = ["n_levels", "n_features_per_level", "log2_hashmap_size", "n_freq"]
    for name in ["dir_encoding", "rgb_network", "distortion_map", "envmap", *(f"encoding.{key}" for key in left)]:
        assert text.count(f"'{name}'") == 1
    assert text.count("'") == 2 * 8
    assert isinstance(config.field.encoding, cn.nn.Frequency) and config.field.encoding.n_frequencies == 12


def test_warnings_are_of_keys_alone():
    """Not of values, and none without a reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cn.from_config(3, 3, BASE, unknown="warn")
        for bad in ({"network": {"n_neurons": -1}}, {"encoding": {"otype": "Hashgrid2"}}, {"loss": 3}):
            with pytest.raises(ValueError, match=r"^from_config: "):
                cn.from_config(3, 3, BASE | bad, unknown="warn")
    nested = [{"otype": "Identity", "n_dims_to_encode": 1, "a": 0}, {"otype": "OneBlob", "b": 0}]
    optimizer = {"otype": "EMA", "c": 0, "nested": {"otype": "Adam", "d": 0}}
    given = {"encoding": {"otype": "Composite", "nested": nested, 7: 8}, "optimizer": optimizer, 5: {}}
    wanted = ["5", "encoding.7", "encoding.nested[0].a", "encoding.nested[1].b", "optimizer.c", "optimizer.nested.d"]
    with pytest.warns(UserWarning) as caught:
        cn.from_config(3, 3, given, unknown="warn")
    assert str(caught[0].message).endswith(": " + ", ".join(map(repr, wanted)) + ".")
    with pytest.raises(ValueError, match="encoding has the unknown key 7"):  # the one before has left nothing
        cn.from_config(3, 3, {"encoding": {"otype": "Identity", 7: 8}})
    for bad in ("ignore", True, None):
        with pytest.raises(ValueError, match=f"from_config: unknown is {bad!r}; accepted are 'error', 'warn'"):
            cn.from_config(3, 3, BASE, unknown=bad)


# ---- samples of the documentation ----------------------------------------------------------------------------

MLP = {"activation": "ReLU", "output_activation": "None", "n_neurons": 128, "n_hidden_layers": 5}
ADAM = {
    "otype": "Adam", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "l2_reg": 1e-8,
    "relative_decay": 0, "absolute_decay": 0, "adabound": False,
}  # fmt: skip
GRID = {
    "otype": "Grid", "type": "Hash", "n_levels": 16, "n_features_per_level": 2, "log2_hashmap_size": 19,
    "base_resolution": 16, "per_level_scale": 2.0, "interpolation": "Linear",
}  # fmt: skip
NRC = [
    {"n_dims_to_encode": 3, "otype": "TriangleWave", "n_frequencies": 12},
    {"n_dims_to_encode": 5, "otype": "OneBlob", "n_bins": 4},
    {"otype": "Identity"},
]
DECAY = {"decay_base": 0.1, "decay_start": 10000, "decay_end": 10000000, "decay_interval": 10000}
#: Sections that tiny-cuda-nn's DOCUMENTATION.md shows, with its defaults.
SAMPLES = [
    *(("network", {"otype": name} | MLP) for name in ("FullyFusedMLP", "CutlassMLP")),
    ("network", {"activation": "ReLU"}),
    ("encoding", {"otype": "Composite", "nested": NRC}),
    ("encoding", {"otype": "Frequency", "n_frequencies": 12}), ("encoding", GRID),
    ("encoding", {"otype": "Identity", "scale": 1.0, "offset": 0.0}), ("encoding", {"otype": "OneBlob", "n_bins": 16}),
    ("encoding", {"otype": "SphericalHarmonics", "degree": 4}),
    ("encoding", {"otype": "TriangleWave", "n_frequencies": 12}),
    *(("loss", {"otype": name}) for name in (
        "L1", "RelativeL1", "MAPE", "SMAPE", "L2", "RelativeL2", "RelativeL2Luminance", "CrossEntropy", "Variance",
    )),
    ("optimizer", ADAM),
    ("optimizer", {
        "otype": "Novograd", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "relative_decay": 0,
        "absolute_decay": 0,
    }),
    ("optimizer", {"otype": "SGD", "learning_rate": 1e-3, "l2_reg": 1e-8}),
    ("optimizer", {"otype": "Batched", "batch_size_multiplier": 16, "nested": {"otype": "Adam"}}),
    ("optimizer", {"otype": "EMA", "decay": 0.99, "nested": {"otype": "Adam"}}),
    ("optimizer", {"otype": "ExponentialDecay", **DECAY, "nested": {"otype": "Adam"}}),
    ("optimizer", {"otype": "Lookahead", "alpha": 0.5, "n_steps": 16, "nested": {"otype": "Adam"}}),
]  # fmt: skip
WITHOUT_A_COUNTERPART = [
    {
        "otype": "Shampoo", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "beta3": 0.9, "beta_shampoo": 0.9,
        "epsilon": 1e-8, "identity": 0.01, "cg_on_momentum": True, "l2_reg": 1e-5, "relative_decay": 0,
        "absolute_decay": 0, "frobenius_normalization": True,
    },
    {"otype": "Average", "n_samples": 128, "nested": {"otype": "Adam"}},
]  # fmt: skip


@pytest.mark.parametrize(("section", "sample"), SAMPLES, ids=[f"{s}-{d.get('otype', '')}" for s, d in SAMPLES])
def test_samples_of_the_documentation(section, sample):
    n_in = 3 if sample.get("otype") == "SphericalHarmonics" else 10 if sample.get("otype") == "Composite" else 2
    assert isinstance(cn.from_config(n_in, 3, {section: sample}), cn.interop.tcnn.Configuration)


@pytest.mark.parametrize("sample", WITHOUT_A_COUNTERPART, ids=lambda sample: sample["otype"])
def test_samples_that_say_why_not(sample):
    with pytest.raises(ValueError, match=rf"optimizer\.otype is '{sample['otype']}', which has no counterpart here: "):
        cn.from_config(2, 3, {"optimizer": sample})


# ---- losses of radiance fields -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Huber", "smoothl1"])
def test_huber_is_instant_ngps(ns, name):
    """``huber_loss(target, prediction, 0.1) / 5`` of its ``nerf_device.cuh``: l2 near zero, value and slope."""
    loss = cn.from_config(2, 3, {"loss": {"otype": name}}).loss
    e = np.array([-2, -0.11, -0.1, -0.05, 0, 0.03, 0.0999, 0.2, 5], np.float32)
    y = ns.Float(e + 1)
    dr.enable_grad(y)
    value = loss(y, ns.Float(1), pdf=ns.Float(0.5))
    far = np.abs(e.astype(np.float64)) > 0.1
    expected = np.where(far, np.abs(e) - 0.05, 5 * e.astype(np.float64) ** 2) / 5
    np.testing.assert_allclose(value.numpy(), expected / 0.5, rtol=1e-4, atol=1e-7)
    dr.backward(value)
    np.testing.assert_allclose(dr.grad(y).numpy(), np.where(far, np.sign(e), 10 * e) / 5 / 0.5, rtol=1e-4, atol=1e-6)


def test_huber_trains(ns, backend):
    network = {"otype": "FullyFusedMLP", "n_neurons": 16, "n_hidden_layers": 1}
    config = cn.from_config(2, 1, {"encoding": {"otype": "Identity"}, "loss": {"otype": "Huber"}, "network": network})
    field = config.field.build(backend)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 128)
        return [x, y], [3 * x * y]

    result = cn.fit(field, batch, 60, progress=False, **config.fit_arguments() | {"lr": 1e-2})
    assert np.mean(result.losses[-5:]) < 0.5 * np.mean(result.losses[:5])
