"""The example that compresses textures: its format, what it compares with, and a whole run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

from support.kernels import launched  # noqa: E402
from support.machines import python  # noqa: E402

EXAMPLES = Path(cn.__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("texture_compression")


@pytest.fixture
def codec(example):
    return importlib.import_module("texture_codec")


LAYOUTS = [
    {"cells": (2, 8), "codes": (2, 8), "bits": 4},
    {"cells": (4, 8), "codes": (8, 4), "bits": 8},
    {"cells": (3, 5), "codes": (16, 1), "bits": 2},
    {"cells": (1, 2), "codes": (1, 32), "bits": 1},
]


@pytest.mark.parametrize("options", LAYOUTS)
def test_files_hold_what_was_trained(backend, ns, codec, tmp_path, options):
    """Sizes that are no multiples of a cell; codes beyond [-1, 1] are clipped; the file has the size that it says."""
    layout = codec.Layout(13, 22, 4, hidden=16, **options)
    field = cn.NeuralField(codec.Latents(layout), layout.network()).build(backend, seed=3)
    rng = np.random.default_rng(0)
    for name in ("fine", "coarse"):
        shape = field.matrix(f"encoding.{name}.data").shape
        field.set_matrix(f"encoding.{name}.data", rng.uniform(-1.3, 1.3, shape).astype(np.float32))
    codec.write(tmp_path / "x.texture", field)
    stored = codec.read(tmp_path / "x.texture", backend)

    for i, name in enumerate(("fine", "coarse")):
        table = field.matrix(f"encoding.{name}.data").astype(np.float64)
        top = 2**layout.bits - 1
        expected = np.round(np.clip((table + 1) / 2, 0, 1) * top) * 2 / top - 1
        vertex = dr.arange(ns.UInt32, len(table))
        for encoding in (field.encoding, stored.encoding):
            found = np.stack([v.numpy() for v in encoding.read(i, vertex)], axis=1)
            np.testing.assert_allclose(found, expected, atol=1e-6)

    data = (tmp_path / "x.texture").read_bytes()
    codes = [-(-np.prod(layout.grid(i)) * layout.codes[i] * layout.bits // 32) * 4 for i in (0, 1)]
    weights = sum(field.network.matrix(name).size for name in codec.LAYERS) * 2
    assert len(data) - data.index(b"\n") - 1 == sum(codes) + weights

    p = [ns.Float(rng.integers(0, n, 200).astype(np.float32)) for n in (layout.width, layout.height)]
    np.testing.assert_allclose(stored(p).numpy(), field(p).numpy(), atol=2e-2)  # weights were rounded
    dr.eval(p)
    with launched() as kernels:
        dr.eval(stored(p))
    assert len(kernels) == 1


def test_codes_that_words_would_cut(codec):
    for codes, bits in [((3, 8), 4), ((2, 8), 3), ((0, 8), 4), ((12, 8), 4), ((1, 1), 32)]:
        with pytest.raises(ValueError, match="codes of"):
            codec.Latents(codec.Layout(8, 8, 3, codes=codes, bits=bits))


def test_corners_interpolate(ns, codec):
    """A texel is between the vertices of the cells around it: what repeats is continuous across the border."""
    layout = codec.Layout(16, 24, 3, cells=(4, 8))
    x = np.linspace(0, 24, 97, dtype=np.float32)
    y = np.full_like(x, 15.5)
    found = codec.corners(ns.Float(x), ns.Float(y), layout, 0)
    rows, columns = layout.grid(0)
    assert (rows, columns) == (4, 6)
    wave = np.sin(2 * np.pi * (np.arange(columns) + 0.5) / columns)
    vertices = np.stack([v.numpy() for v, _ in found])
    weights = np.stack([w.numpy() for _, w in found])
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-5)
    assert vertices.max() < rows * columns and set(vertices[0] // columns) == {3} and set(vertices[2] // columns) == {0}
    expected = np.interp(x, (np.arange(-1, columns + 1) + 0.5) * 4, wave[np.arange(-1, columns + 1) % columns])
    np.testing.assert_allclose((weights * wave[vertices % columns]).sum(axis=0), expected, atol=1e-5)


def test_rounding_passes_gradients_on(backend, ns, codec):
    layout = codec.Layout(8, 8, 3, hidden=16)
    encoding = cn.NeuralField(codec.Latents(layout), layout.network()).build(backend).encoding
    table = encoding.fine.table.value.data
    dr.enable_grad(table)
    dr.backward(sum(encoding.read(0, ns.UInt32([1, 1, 2]))))
    gradient = dr.grad(table).numpy()
    np.testing.assert_array_equal(gradient[:4], [[0, 0], [2, 2], [1, 1], [0, 0]])


def test_codes_are_searched(backend, example, codec, tmp_path):
    """Each fine code is then the best one that there is, as long as the others stay; a file can be trained further."""
    maps = importlib.import_module("texture_maps").material(64)
    layout = codec.Layout(64, 64, 9, hidden=16, **example.SIZES["third"])
    codec.write(tmp_path / "x.texture", example.train(maps, layout, backend, 40, 1 << 11))
    field = codec.trainable(codec.read(tmp_path / "x.texture", backend), backend)

    def error():
        return np.mean(np.square(codec.decode(field, backend) - maps))

    before = error()
    example.search(field, maps, backend)
    least, codes = error(), field.matrix("encoding.fine.data").copy()
    assert least < 0.98 * before
    for vertex in (65, 1000 + 65, 4095):  # of the class that was searched last
        for code in (0, 5, 15):
            other = codes.copy()
            other[vertex] = code * 2 / 15 - 1
            field.set_matrix("encoding.fine.data", other)
            assert error() >= least * (1 - 1e-6)
    with pytest.raises(ValueError, match="one code for each texel and even sides"):
        example.search(cn.NeuralField(codec.Latents(codec.Layout(8, 8, 3)), layout.network()), maps, backend)


def test_several_modes_of_bc7(example):
    """Closer to a material than mode 6 alone, and grey is grey."""
    pytest.importorskip("etcpak")
    pytest.importorskip("texture2ddecoder")
    peers, sources = importlib.import_module("texture_peers"), importlib.import_module("texture_maps")
    maps = sources.material(64)[..., :3]
    assert np.mean((peers.bc7(maps) - maps) ** 2) < np.mean((peers.bc7_mode6(maps) - maps) ** 2)
    grey = peers.bc7(maps[..., :1])
    assert grey.shape == (64, 64, 1) and np.abs(grey - maps[..., :1]).max() < 0.1


def test_blocks(example):
    """Two colours a block that the end points can hold are exact, and a ramp has as many colours as there are."""
    peers = importlib.import_module("texture_peers")
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 2, (2, 3, 3, 3)).astype(np.float32)
    choice = rng.integers(0, 2, (12, 12))
    rows, columns = np.indices((12, 12)) // 4
    maps = ends[choice, rows, columns]
    for encode in (peers.bc1, peers.bc7_mode6):
        np.testing.assert_array_equal(encode(maps), maps)
    ramp = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4, 1)
    ramp = np.round(ramp * 255) / 255
    np.testing.assert_allclose(peers.bc7_mode6(ramp), ramp, atol=1e-6)
    assert len(np.unique(peers.bc1(ramp))) == 8 and peers.bc1_bits(ramp) == 4
    assert len(np.unique(peers.bc1(np.repeat(ramp, 3, axis=2)).reshape(-1, 3), axis=0)) == 4


def test_blocks_are_searched(example):
    """End points beside the extremes, where most texels gain from it; blocks hold what BC1 can say."""
    peers, sources = importlib.import_module("texture_peers"), importlib.import_module("texture_maps")
    grey = np.array([0] + [0.25] * 7 + [0.5] * 7 + [1], np.float32).reshape(4, 4, 1)
    extremes = np.abs(np.array([0, 1 / 3, 2 / 3, 1]) - grey).min(axis=2)
    assert np.mean((peers.blocks(grey, (8,), 4) - grey) ** 2) < 0.9 * np.mean(extremes**2)
    found = peers.bc1(sources.material(64)[..., :3])
    for block in found.reshape(16, 4, 16, 4, 3).swapaxes(1, 2).reshape(-1, 16, 3):
        assert len(np.unique(block, axis=0)) <= 4


def test_jpeg_is_a_curve(example):
    peers, sources = importlib.import_module("texture_peers"), importlib.import_module("texture_maps")
    maps = sources.material(64)
    pictures = [maps[..., :3], maps[..., 3:4], maps[..., 6:9]]
    curve = peers.jpeg_curve(pictures)
    bits = [b for b, _ in curve]
    errors = [np.mean((decoded - np.dstack(pictures)) ** 2) for _, decoded in curve]
    assert len(curve) > 8 and bits == sorted(bits) and errors == sorted(errors, reverse=True)


def test_maps(example, tmp_path):
    sources = importlib.import_module("texture_maps")
    maps = sources.material(64)
    assert maps.shape == (64, 64, 9) and maps.min() >= 0 and maps.max() <= 1
    np.testing.assert_allclose(maps * 255, np.round(maps * 255), atol=1e-4)
    steps = np.abs(maps - np.roll(maps, 1, axis=0)).mean(axis=(1, 2))
    assert steps[0] < 1.5 * steps[16::16].max()  # no seam: plates end there, too
    paths = []
    for folder, part in (("a", maps[..., :3]), ("b", maps[..., 4:5])):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "map.png")
        Image.fromarray(np.round(part.squeeze() * 255).astype(np.uint8)).save(paths[-1])
    found, parts = sources.read(paths)
    np.testing.assert_allclose(found, maps[..., [0, 1, 2, 4]], atol=1e-6)
    assert list(parts.values()) == [slice(0, 3), slice(3, 4)]
    Image.new("L", (5, 5)).save(paths[1])
    with pytest.raises(ValueError, match="of one size"):
        sources.read(paths)


@pytest.mark.slow
def test_the_example_runs(backend, example, tmp_path, monkeypatch, capsys):
    """Files of the user's own. Even so short a training must do better than mean colours would."""
    sources = importlib.import_module("texture_maps")
    maps, paths = sources.material(96)[:90], []
    for name, part in sources.MAPS.items():
        paths.append(str(tmp_path / f"{name}.png"))
        Image.fromarray(np.round(maps[..., part] * 255).astype(np.uint8)).save(paths[-1])
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["x", *paths, "--quick", "--backend", backend, "--out", str(out)])
    assert example.main() == 0
    text = capsys.readouterr().out
    flat = example.psnr(np.broadcast_to(maps.mean(axis=(0, 1)), maps.shape), maps)
    line = next(line for line in text.splitlines() if line.startswith("neural, large"))
    bits, quality = map(float, line.split()[2:4])
    assert quality > flat + 3 and bits == pytest.approx(
        8 * (out / "large.texture").stat().st_size / (90 * 96), abs=0.01
    )
    for name in ("rate-distortion.png", "crops.png"):
        assert (out / name).stat().st_size > 10_000


@pytest.mark.slow
def test_the_benchmark_writes_figures(backend, tmp_path):
    run = python(
        EXAMPLES.parent / "benchmarks" / "texture_compression.py", "--quick", "--backend", backend, "--out", tmp_path
    )
    assert run.returncode == 0, run.stderr
    results = json.loads((tmp_path / f"texture-compression-{backend}.json").read_text())["results"]
    codecs = {row["codec"] for row in results["codecs"]}
    assert codecs - {"BC7"} == {"neural, small", "neural, large", "JPEG", "BC1", "BC7, mode 6"}
    assert all(ms > 0 for cost in results["neural"].values() for ms in cost["decoding_ms"].values())
