"""``coopnet convert``: configurations and parameters of tiny-cuda-nn as checkpoints."""

import json

import numpy as np
import pytest
from support.command_line import fails

import coopnet as cn

pytest.importorskip("typer")
pytest.importorskip("safetensors")
Image = pytest.importorskip("PIL.Image")

from coopnet import cli  # noqa: E402

CONFIG = {
    "encoding": {"otype": "HashGrid", "n_levels": 4, "log2_hashmap_size": 8, "base_resolution": 4},
    "network": {"otype": "FullyFusedMLP", "n_neurons": 16, "n_hidden_layers": 2, "activation": "ReLU"},
    "loss": {"otype": "RelativeL2"},
    "optimizer": {"otype": "Adam", "learning_rate": 0.01},
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("// as tiny-cuda-nn's sample\n" + json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def trained(backend):
    """Parameters that a model may have learned."""
    field = cn.from_config(2, 3, CONFIG, pad="tcnn").field.build(backend, seed=5)
    return (field.to_tcnn() * 1.5).astype(np.float16)


def convert(config, backend, *more, inputs=2, outputs=3):
    target = config.with_name("field.safetensors")
    size = ["--inputs", str(inputs), "--outputs", str(outputs), "--backend", backend]
    assert cli.main(["convert", str(config), "-o", str(target), *size, *map(str, more)]) == 0
    return target


def test_initial_parameters(config, backend, capsys):
    target = convert(config, backend, "--seed", 9)
    assert "2 coordinates to 3 values" in capsys.readouterr().out
    found = cn.load(target, backend)
    expected = cn.from_config(2, 3, CONFIG, pad="tcnn").field.build(backend, seed=9)
    np.testing.assert_array_equal(found.to_tcnn(), expected.to_tcnn())
    assert cn.io.read(target).metadata["tcnn"] == CONFIG


@pytest.mark.parametrize("kind", ["npy", "half", "single"])
def test_learned_parameters(config, trained, backend, kind, tmp_path):
    """From NumPy's files, and from raw numbers in both precisions; and the picture that they are."""
    path = tmp_path / ("params.npy" if kind == "npy" else "params.bin")
    if kind == "npy":
        np.save(path, trained)
    else:
        trained.astype(np.float16 if kind == "half" else np.float32).tofile(path)
    more = ["--dtype", "float32"] if kind == "single" else []
    target = convert(config, backend, "--params", path, *more)
    field = cn.load(target, backend)
    np.testing.assert_array_equal(field.to_tcnn(), trained.astype(np.float32))
    picture = tmp_path / "picture.png"
    assert cli.main(["render", str(target), "-o", str(picture), "--size", "8x6", "--backend", backend]) == 0
    # the unit square, as tiny-cuda-nn's sample has it
    y, x = np.divmod(np.arange(48), 8)
    ns = cn.backend.namespace(backend)
    expected = field([ns.Float((x + 0.5) / 8), ns.Float((y + 0.5) / 6)]).numpy().T.reshape(6, 8, 3)
    drawn = np.asarray(Image.open(picture), np.float32) / 255
    np.testing.assert_allclose(drawn, np.clip(expected, 0, 1), atol=1.01 / 255)


def test_unknown_keys(config, backend, capsys):
    patched = json.dumps(CONFIG | {"snapshot": {"density_grid_size": 1}})
    config.write_text(patched)
    arguments = ["convert", config, "-o", config.with_name("x.safetensors"), "--inputs", 2, "--outputs", 3]
    fails(capsys, [*arguments, "--backend", backend], 1, "snapshot")
    convert(config, backend, "--ignore-unknown")
    assert capsys.readouterr().err.startswith("coopnet: warning: ")


def test_a_checkpoint_is_replaced_with_force_only(config, backend, capsys):
    target = config.with_name("trained.safetensors")
    target.write_bytes(b"trained")
    arguments = ["convert", config, "-o", target, "--inputs", 2, "--outputs", 3, "--backend", backend]
    fails(capsys, arguments, 1, target, "is there already", "--force", "another --output")
    assert target.read_bytes() == b"trained"
    assert cli.main([*map(str, arguments), "--force"]) == 0 and target.stat().st_size > 100


def test_what_cannot_be_converted(config, trained, backend, tmp_path, capsys):
    out = tmp_path / "x.safetensors"
    size = ["--inputs", 2, "--outputs", 3, "--backend", backend]
    start = ["convert", config, "-o", out, *size]
    fails(capsys, ["convert", tmp_path / "none.json", "-o", out, *size], 1, "none.json")
    fails(capsys, ["convert", config, "-o", tmp_path / "x.npz", *size], 2, "--output", "safetensors")
    fails(capsys, ["convert", config, "-o", out, "--inputs", 0, "--outputs", 3], 2, "--inputs")
    fails(capsys, ["convert", config, "-o", out, "--inputs", 2], 2, "--outputs")
    np.save(tmp_path / "short.npy", trained[:-1])
    fails(capsys, [*start, "--params", tmp_path / "short.npy"], 1, "short.npy", "numbers")
    np.save(tmp_path / "whole.npy", trained.astype(np.int32))
    fails(capsys, [*start, "--params", tmp_path / "whole.npy"], 1, "whole.npy", "floating point")
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    fails(capsys, [*start, "--params", tmp_path / "objects.npy"], 1, "objects.npy")  # nothing of it is executed
    (tmp_path / "odd.bin").write_bytes(trained.tobytes() + b"x")
    fails(capsys, [*start, "--params", tmp_path / "odd.bin"], 1, "odd.bin", "not a multiple of the 2 of a float16")
    fails(capsys, [*start, "--params", tmp_path / "none.bin"], 1, "none.bin")
    fails(capsys, [*start, "--params", tmp_path / "short.npy", "--dtype", "float16"], 2, "--dtype")
    config.write_text("{")
    fails(capsys, start, 1, "config.json", "not JSON")
    assert not out.exists()
