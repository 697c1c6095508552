"""Images: what files hold, which fields learn them, from which pixels."""

from __future__ import annotations

import inspect
import math
import struct
import sys
import warnings

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")
ImageCms = pytest.importorskip("PIL.ImageCms")

from support.kernels import launched  # noqa: E402
from support.machines import python  # noqa: E402

from coopnet import image as images  # noqa: E402
from coopnet.image import evaluate, files, learn  # noqa: E402

# ---- files ---------------------------------------------------------------


def noise(mode="RGB", size=(6, 4)):
    channels = {"RGB": 3, "RGBA": 4, "LA": 2, "L": 1}[mode]
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels), np.uint8)
    return Image.fromarray(values[..., 0] if channels == 1 else values, mode if mode == "LA" else None)


def swapped_profile():
    """The profile of a space like sRGB but for red and blue, which have changed places."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert profile.count(b"rXYZ") == profile.count(b"bXYZ") == 1
    return profile.replace(b"rXYZ", b"----").replace(b"bXYZ", b"rXYZ").replace(b"----", b"bXYZ")


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_profiles_are_converted(tmp_path, mode):
    path = tmp_path / "x.png"
    image = noise(mode)
    if mode == "RGBA":
        image.putalpha(255)
    image.save(path, icc_profile=swapped_profile())
    plain = np.asarray(image, np.float32)[..., :3] / 255
    np.testing.assert_allclose(images.load(path), plain[..., ::-1], atol=2.01 / 255)
    image.save(path, icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    np.testing.assert_allclose(images.load(path), plain, atol=1.01 / 255)


def grey_profile():
    """A profile of greys whose curve is linear: sRGB's header and white point, and a curve of a single exponent, 1."""
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061)
    curve = b"curv" + bytes(4) + struct.pack(">I", 0)
    text = b"text" + bytes(4) + b"grey\0"
    text, tags, body, start = text + bytes(-len(text) % 4), b"", b"", 128 + 4 + 12 * 4
    for name, data in ((b"desc", text), (b"wtpt", white), (b"kTRC", curve), (b"cprt", text)):
        tags += name + struct.pack(">2I", start + len(body), len(data))
        body += data
    head = bytearray(128)
    head[0:4] = struct.pack(">I", start + len(body))
    head[8:12], head[12:24], head[36:40] = bytes([2, 16, 0, 0]), b"mntrGRAYXYZ ", b"acsp"
    head[68:80] = struct.pack(">3i", 63190, 65536, 54061)
    return bytes(head) + struct.pack(">I", 4) + tags + body


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_profiles_of_greys(tmp_path, mode):
    level = np.array([[0, 55, 128, 255]])
    grey = Image.fromarray(np.uint8(level)) if mode != "I;16" else Image.fromarray(np.uint16(level * 257))
    if mode == "LA":
        grey.putalpha(255)
    grey.save(tmp_path / "x.png", icc_profile=grey_profile())
    x = level / 255
    expected = np.where(x < 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)
    np.testing.assert_allclose(images.load(tmp_path / "x.png")[..., 0], expected, atol=1.01 / 255)


def test_profiles_of_palettes(tmp_path):
    colours = Image.fromarray(np.array([[0, 1]], np.uint8))
    colours.putpalette([255, 0, 0, 0, 255, 0])
    colours.save(tmp_path / "x.png", icc_profile=swapped_profile())
    np.testing.assert_allclose(images.load(tmp_path / "x.png"), [[[0, 0, 1], [0, 1, 0]]], atol=2.01 / 255)


def test_profiles_that_cannot_be_converted_are_left(tmp_path):
    path = tmp_path / "x.png"
    noise().save(path, icc_profile=b"broken")
    np.testing.assert_array_equal(images.load(path), np.asarray(noise(), np.float32) / 255)
    noise("L").save(path, icc_profile=swapped_profile())  # of colours, in a grey image
    np.testing.assert_array_equal(images.load(path)[..., 0], np.asarray(noise("L"), np.float32) / 255)


def test_profiles_of_inks(tmp_path):
    """Pillow has no profile to try: that one is asked for, and what comes back is taken."""
    image = noise().convert("CMYK")
    image.info["icc_profile"] = swapped_profile()  # of other channels than the image's, so that lcms refuses
    assert files._srgb(image) is image
    image.info["icc_profile"] = b""
    assert files._srgb(image) is image


def test_large_images(tmp_path, monkeypatch):
    """Silently, up to the size at which Pillow refuses."""
    path = tmp_path / "x.png"
    noise().save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert images.load(str(path)).shape == (4, 6, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ValueError, match=r"x\.png' is too large: .*24 pixels"):
        images.load(path)


def test_names_may_be_strings(tmp_path):
    noise().save(tmp_path / "x.png")
    np.testing.assert_array_equal(images.load(str(tmp_path / "x.png")), images.load(tmp_path / "x.png"))
    with pytest.raises(IsADirectoryError, match="is a directory"):
        images.load(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.png"):
        images.load(str(tmp_path / "none.png"))


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    noise().save(path)
    for error, kind, words in (
        (PermissionError(13, "Permission denied"), OSError, "cannot read .*Permission denied"),
        (OSError("cut"), ValueError, "damaged image: cut"),
        (SyntaxError("odd"), ValueError, "damaged image: odd"),
        (EOFError("end"), ValueError, "damaged image: end"),
    ):

        def fail(path, error=error):
            raise error

        monkeypatch.setattr(Image, "open", fail)
        with pytest.raises(kind, match=words) as caught:
            images.load(path)
        assert type(caught.value) is kind and "x.png" in str(caught.value)


def test_files_that_need_another_program(tmp_path, monkeypatch):
    (tmp_path / "x.eps").write_bytes(b"%!PS")

    def fail(path):
        raise OSError("Unable to locate Ghostscript on paths")

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(ValueError, match=r"x\.eps' needs Ghostscript, which is not installed; convert it to PNG"):
        images.load(tmp_path / "x.eps")


def test_formats_that_hold_any_picture():
    formats = files.writable_formats()
    assert {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif", ".ppm"} <= formats
    assert not {".ico", ".icns", ".pfm", ".h5", ".eps", ".xbm"} & formats


def test_transparency_is_over_white(tmp_path):
    path = tmp_path / "x.png"
    for mode in ("RGBA", "LA"):
        image = noise(mode)
        image.save(path)
        values = np.asarray(image, np.float32)[..., :] / 255
        alpha = values[..., -1:]
        np.testing.assert_allclose(
            images.load(path), values[..., :-1] * alpha + 1 - alpha, atol=1.01 / 255, err_msg=mode
        )
    grey = noise("L")
    level = int(np.asarray(grey)[1, 2])
    grey.save(path, transparency=level)  # one level that is transparent
    expected = np.where(np.asarray(grey) == level, 255, np.asarray(grey))[..., None].astype(np.float32) / 255
    np.testing.assert_array_equal(images.load(path), expected)
    colours = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8))
    colours.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    colours.save(path, transparency=1)
    np.testing.assert_array_equal(images.load(path), [[[1, 0, 0], [1, 1, 1]], [[0, 0, 1], [1, 1, 1]]])


def test_other_depths(tmp_path):
    path = tmp_path / "x.tiff"
    values = np.array([[0.25, -1e-6, 1 + 1e-6], [0.5, 0.0, 1.0]], np.float32)
    Image.fromarray(values).save(path)
    np.testing.assert_array_equal(images.load(path)[..., 0], [[0.25, 0, 1], [0.5, 0, 1]])
    Image.fromarray(np.array([[0, 65535, 32768]], np.uint16)).save(path)
    loaded = images.load(path)
    assert loaded.dtype == np.float32 and loaded.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(loaded[..., 0], [[0, 1, 32768 / 65535]])
    bits = Image.fromarray(np.array([[True, False]]))
    bits.save(path)
    np.testing.assert_array_equal(images.load(path)[..., 0], [[1, 0]])


@pytest.mark.parametrize(
    "values, says",
    [
        (np.float32([[-20, 135]]), r"x\.tiff' has values from -20 to 135; those of an image lie in \[0, 1\]; scale"),
        (np.float32([[np.nan, 0.5]]), r"values that are not finite; those of an image lie in \[0, 1\]"),
        (np.int32([[-7, 65536]]), r"values from -7 to 65536; those of an image lie in \[0, 65535\]"),
    ],
)
def test_numbers_that_are_no_picture(tmp_path, values, says):
    """Such as heights: clipped, they would be another picture."""
    Image.fromarray(values).save(tmp_path / "x.tiff")
    with pytest.raises(ValueError, match=says):
        images.load(tmp_path / "x.tiff")


def test_transparency_of_16_bits(tmp_path):
    Image.fromarray(np.uint16([[10000, 20000]])).save(tmp_path / "x.png", transparency=10000)
    np.testing.assert_allclose(images.load(tmp_path / "x.png")[..., 0], [[1, 20000 / 65535]])


def test_save(tmp_path):
    """Rounded to the nearest of 256 levels, what is outside clipped, what is no number black."""
    colours = np.array([[[0.0, 1.0, 0.5], [-3, 7, np.nan]], [[0.1, 0.2, 0.3], [0.4999, 1.49 / 255, 1.51 / 255]]])
    images.save(tmp_path / "x.png", colours)
    written = Image.open(tmp_path / "x.png")
    assert written.mode == "RGB" and written.size == (2, 2)
    np.testing.assert_array_equal(written, [[[0, 255, 128], [0, 255, 0]], [[26, 51, 76], [127, 1, 2]]])
    images.save(str(tmp_path / "x.png"), colours[..., :1])
    written = Image.open(tmp_path / "x.png")
    assert written.mode == "L"
    np.testing.assert_array_equal(written, [[0, 0], [26, 127]])
    images.save(tmp_path / "x.bmp", colours)
    assert Image.open(tmp_path / "x.bmp").format == "BMP"
    assert {".png", ".jpg", ".tiff"} <= files.writable_formats()
    assert not {".cur", ".xyz", ""} & files.writable_formats()  # read alone, or not at all


# ---- drawing -------------------------------------------------------------


def test_a_kernel_for_all_channels(backend, ns, monkeypatch):
    """One for each piece, and the same one for pictures of any size and region."""
    monkeypatch.setattr(evaluate, "CHUNK", 32)
    field = cn.NeuralField(None, cn.MLP(2, 3, width=8, depth=1)).build(backend)
    dr.eval(*field.values())
    images.render(field, 8, 4)
    with launched() as kernels:
        images.render(field, 8, 8)
        images.render(field, 16, 2)
        images.render(field, 4, 4, (0.1, 0.2, 0.3, 0.4))
    assert len(kernels) == 4 and len({k["hash"] for k in kernels}) == 1
    with launched() as kernels:
        evaluate.evaluate(field, np.arange(40), 8, 8)
    assert len(kernels) == 2


# ---- fields for images ---------------------------------------------------


@pytest.mark.parametrize(
    ("size", "fraction", "expected"),
    [
        # cells along the longer side: side sqrt(fraction); a level for a quarter of them, up to one for 1.1 of them
        ((400, 100), 0.25, dict(base_resolution=48, finest=220, hashmap_size=2**17)),
        ((30, 100), 0.25, dict(base_resolution=12, finest=55, hashmap_size=2**13)),
        ((8, 2), 0.25, dict(base_resolution=2, finest=8, hashmap_size=2**7)),
        ((40000, 8), 1, dict(base_resolution=48, finest=44000, hashmap_size=2**22)),
    ],
)
def test_grids_follow_the_training_pixels(size, fraction, expected):
    field = images.make_field(*size, fraction=fraction)
    grid = field.encoding
    assert isinstance(grid, cn.HashGrid) and grid.in_features == 2
    assert (grid.n_levels, grid.base_resolution) == (32, expected["base_resolution"])
    assert grid.hashmap_size == expected["hashmap_size"]
    assert grid.base_resolution * grid.per_level_scale**31 == pytest.approx(expected["finest"])


def test_octaves_follow_the_training_pixels():
    for size, fraction, octaves in (((64, 20), 0.25, 5), ((20, 100), 0.25, 6), ((3, 3), 0.1, 2), ((10**5, 1), 1, 12)):
        for name, cls in (("sinusoidal", cn.Sinusoidal), ("triangular", cn.Triangular)):
            field = images.make_field(*size, fraction=fraction, encoding=name)
            assert type(field.encoding) is cls and field.encoding.octaves == octaves
            assert field.encoding.in_features == 2


@pytest.mark.parametrize("encoding", learn.ENCODINGS)
def test_networks_for_images(encoding):
    field = images.make_field(40, 30, 1, encoding=encoding, units=24, depth=3, dropout=0.25)
    layers = field.network.layers
    linear = [v for v in layers if isinstance(v, cn.Linear)]
    first = 2 if encoding == "identity" else -1
    plain = encoding == "identity"  # which has no constants
    assert len(linear) == 4 and linear[0].config[0] == first
    assert [v.config[1] for v in linear] == [24, 24, 24, 1] and {v.config[2] for v in linear} == {plain}
    assert [v.p for v in layers if isinstance(v, cn.Dropout)] == [0.25] * 3
    assert isinstance(layers[-1], cn.Sigmoid)  # colours lie in [0, 1]


def test_defaults():
    def of(function):
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    common = dict(encoding="hashgrid", depth=2, dropout=0.0, fraction=0.2)
    assert of(images.make_field) == common | dict(channels=3, units=64)
    assert of(images.fit_image) == common | dict(
        backend="auto", steps=500, width=64, batch=2**14, lr=5e-3, seed=0, resume=False, progress=True
    )
    assert of(images.training_pixels) == of(images.learn.load_image_field) == {"backend": "auto"}
    assert of(images.render) == {"region": None} and of(images.render_mc) == {"seed": 0, "region": None}
    assert learn.METRIC_PIXELS == 2**16 and evaluate.CHUNK == 2**18
    assert images.ImageFit(None, None) == images.ImageFit(None, None, None, None, {})


def test_unknown_encodings():
    with pytest.raises(ValueError, match="encoding is 'fourier'; accepted are 'sinusoidal', 'triangular', 'hash"):
        images.make_field(4, 4, encoding="fourier")


# ---- pixels to learn from ------------------------------------------------


def test_how_many_pixels_are_trained_on(backend):
    for count, fraction, n in (
        (10, 0.34, 3), (10, 0.36, 4), (10, 0.01, 1), (10, 0.99, 9), (10, 1, 10), (2, 0.5, 1), (2, 1, 2), (3, 0.5, 2),
    ):  # fmt: skip
        chosen = images.training_pixels(count, fraction, 3, backend)
        assert len(chosen) == n and (np.diff(chosen) > 0).all() and 0 <= chosen.min() <= chosen.max() < count


GOOD = np.zeros((2, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(fraction=0), r"fraction is 0; a number in \(0, 1\]"),
        (dict(fraction=-0.5), "fraction is -0.5"),
        (dict(fraction=1.01), "fraction is 1.01"),
        (dict(fraction=math.nan), "fraction is nan"),
        (dict(batch=0), "batch is 0; an int from 1"),
        (dict(batch=2**24 + 1), "batch is 16777217"),
        (dict(lr=0), "lr is 0; a positive number"),
        (dict(lr=-0.5), "lr is -0.5"),
        (dict(lr=math.inf), "lr is inf"),
        (dict(lr=math.nan), "lr is nan"),
        (dict(steps=0), "steps is 0; an int from 1"),
        (dict(steps=2**32), "steps is 4294967296"),
        (dict(image=GOOD[..., :2]), r"image is of shape \(2, 3, 2\); an array"),
        (dict(image=GOOD[..., 0]), r"image is of shape \(2, 3\)"),
        (dict(image=GOOD.tolist()), "image is a list"),
        (dict(image=255 * np.ones_like(GOOD)), r"image has values from 255 to 255; \[0, 1\] is needed"),
        (dict(image=-np.ones_like(GOOD)), "image has values from -1 to -1"),
        (dict(image=GOOD[:1, :1]), "no pixel or a single one"),
        (dict(image=np.broadcast_to(GOOD[:1, :1], (2**16, 2**16, 3))), r"2\^32 pixels or more"),
    ],
)
def test_bad_arguments(tmp_path, change, words):
    arguments = dict(image=GOOD, directory=tmp_path / "out") | change
    with pytest.raises(ValueError, match=f"^fit_image: .*{words}"):
        images.fit_image(**arguments)
    assert not (tmp_path / "out").exists()


SMALL = np.full((2, 3, 3), 0.5, np.float32)
DRAWINGS = {
    "make_field": (lambda f, **k: images.make_field(**(dict(width=4, height=4) | k)), [
        (dict(width=0), "width is 0"), (dict(height=2.5), "height is 2.5"), (dict(channels=0), "channels is 0"),
        (dict(fraction=0), "fraction is 0"), (dict(width=2**20, height=2**20), "fewer than 2"),
    ]),
    "training_pixels": (lambda f, **k: images.training_pixels(**(dict(count=4, fraction=0.5, seed=1) | k)), [
        (dict(count=0), "count is 0"), (dict(fraction=2), "fraction is 2"), (dict(seed=-1), "seed is -1"),
    ]),
    "render": (lambda f, **k: images.render(**(dict(field=f, width=4, height=4) | k)), [
        (dict(width=0), "width is 0"), (dict(height=None), "height is None"), (dict(field=3), "field is a int"),
        (dict(field=cn.NeuralField(None, cn.MLP(2, 1))), "not built yet"), (dict(region=(0, 0, 1)), "region is "),
        (dict(region=(0, 0, 0, 1)), "region is "), (dict(region=(0, 0, math.nan, 1)), "region is "),
        (dict(region=()), "region is "),
    ]),
    "render_mc": (lambda f, **k: images.render_mc(**(dict(field=f, width=4, height=4, samples=2) | k)), [
        (dict(seed=-1), "seed is -1"), (dict(width=-1), "width is -1"), (dict(field=None), "field is a NoneType"),
        (dict(region="all"), "region is 'all'"),
    ]),
    "pixels": (lambda f, **k: images.pixels(**(dict(index=dr.llvm.ad.UInt32(1), width=4, height=4) | k)), [
        (dict(index=3), "index is a int"), (dict(index=dr.llvm.ad.Float(1)), "index is a Float"),
        (dict(width=0), "width is 0"), (dict(region=(0, 0, 1, -1)), "region is "),
    ]),
    "psnr": (lambda f, **k: images.psnr(**(dict(a=SMALL, b=SMALL) | k)), [
        (dict(a=SMALL.astype(np.uint8)), "a is of uint8"), (dict(b=SMALL[:1]), r"b \(1, 3, 3\)"),
        (dict(b=SMALL.tolist()), "b is a list"),
    ]),
    "save": (lambda f, **k: images.save(**(dict(path="x.png", values=SMALL) | k)), [
        (dict(values=np.full((2, 3, 3), 255, np.uint8)), r"of uint8; .*values / np.float32\(255\)"),
        (dict(values=SMALL[0]), "has the shape"), (dict(values=SMALL[:, :, :2]), "has the shape"),
        (dict(values=SMALL[:0]), "has the shape"),
        (dict(path="x.abc"), "suffix is '.abc'"), (dict(path="x"), "suffix is ''"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWINGS)
def test_bad_arguments_of_drawing(name, backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1, dropout=0.5)).build(backend)
    call, changes = DRAWINGS[name]
    for change, words in changes:
        with pytest.raises((TypeError, ValueError), match=f"^image.{name}: .*{words}"):
            call(field, **change)
    for inputs in (1, 3):
        with pytest.raises(ValueError, match=f"field.in_features is {inputs}; 2 is needed"):
            images.render(cn.NeuralField(None, cn.MLP(inputs, 1, width=8, depth=1)).build(backend), 2, 2)
    assert not list(tmp_path.iterdir())


def test_long_thin_pictures_have_small_grids():
    """A level has at most 16 entries for each training pixel, rounded up to a power of two."""
    for size, entries in (((10**5, 9), 2**22), ((10**4, 4), 2**18), ((4, 10**4), 2**18), ((1, 10**3), 2**12)):
        assert images.make_field(*size, fraction=0.25).encoding.hashmap_size == entries


class Halves(np.ndarray):
    """Of whatever size: looking for the extremes of four billion pixels takes seconds."""

    def __array_function__(self, function, types, args, kwargs):
        assert function in (np.min, np.max)
        return np.float32(0.5)


def test_ends_of_the_ranges():
    fine = dict(image=GOOD, fraction=0.5, batch=5, lr=0.1, steps=3, seed=0)
    for change in (
        {}, dict(fraction=1), dict(fraction=1e-9), dict(batch=1), dict(batch=2**24), dict(lr=1e-30), dict(lr=1e30),
        dict(steps=1), dict(steps=2**32 - 1), dict(image=GOOD[:1, :2]), dict(image=GOOD[:2, :1, :1]),
        dict(image=np.broadcast_to(GOOD[:1, :1, :1], (2**16, 2**16 - 1, 1)).view(Halves)),
    ):  # fmt: skip
        learn._check(**(fine | change))


# ---- memory --------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of the address space")
def test_pictures_that_memory_does_not_hold(backend, tmp_path):
    """A small file may be a huge picture: what is missing is said where it would be, and nothing ends the process."""
    if backend != "llvm":
        pytest.skip("a limit of the address space, which CUDA's is not part of")
    Image.new("RGB", (2500, 3000), (10, 200, 30)).save(tmp_path / "large.png")
    Image.new("RGB", (2500, 500), (10, 200, 30)).save(tmp_path / "field.png")
    code = """
import resource, sys
from coopnet import backend, cli
backend.require("llvm")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for name, left in (("large", 100), ("large", 300), ("field", 500)):
    resource.setrlimit(resource.RLIMIT_AS, (used + (left << 20), resource.RLIM_INFINITY))
    print(cli.main(["fit", f"{sys.argv[1]}/{name}.png", "-o", f"{sys.argv[1]}/out", "--backend", "llvm"]))
"""
    done = python("-c", code, tmp_path)
    assert done.returncode == 0, done.stderr[-500:]
    assert [line for line in done.stdout.splitlines() if line.isdecimal()] == ["1"] * 3
    first, second, third = done.stderr.splitlines()
    path, size = str(tmp_path / "large.png"), "2500 x 3000 pixels; "
    assert f"'{path}' is a picture of {size}reading it takes 150.2 MiB more memory, 64.4 MiB for its pixels" in first
    assert f"error: the picture has {size}learning it takes 307.6 MiB more memory, 143.1 MiB for choosing" in second
    assert "error: the picture has 2500 x 500 pixels, which makes a large field. " in third
    for line in (first, second, third):
        assert "of the address space of this process (ulimit -v) are left. " in line and "fewer pixels" in line
    assert not list(tmp_path.glob("out/*"))


def test_psnr_of_some_rows(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.random((50, 3)) * 1.2, rng.random((50, 3))
    rows = np.array([3, 4, 9, 40])
    whole, some = images.psnr(a, b), images.psnr(a[rows], b[rows])
    assert whole == pytest.approx(-10 * np.log10(np.mean((np.clip(a, 0, 1) - b) ** 2)))
    monkeypatch.setattr(files, "_PIECE", 3)
    assert images.psnr(a, b) == pytest.approx(whole) and files.psnr(a, b, rows) == pytest.approx(some)
    assert np.isnan(images.psnr(a[:, :0], b[:, :0])) and np.isnan(images.psnr(a[:0], b[:0]))


def test_two_runs_in_one_folder(tmp_path, monkeypatch):
    """The second one is refused, whether or not the first has written anything; afterwards the folder is free."""
    pytest.importorskip("fcntl")
    image, run = np.full((4, 4, 3), 0.5, np.float32), learn.fit_to

    def twice(*args, **options):
        with pytest.raises(OSError, match=r"fit_image: directory is '.*out', to which another run writes; wait"):
            images.fit_image(image, tmp_path / "out", steps=2, progress=False)
        return run(*args, **options)

    monkeypatch.setattr(learn, "fit_to", twice)
    images.fit_image(image, tmp_path / "out", steps=2, progress=False)
    monkeypatch.undo()
    images.fit_image(image, tmp_path / "out", steps=2, progress=False)
