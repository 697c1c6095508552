"""Measured materials: files of the MERL database, made here of a known BSDF, and RGL's by Mitsuba's plugin."""

from __future__ import annotations

import copy
import os
import struct
import sys

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet import reference as ref

mi = pytest.importorskip("mitsuba")

from coopnet.mitsuba.bsdf import merl, rgl  # noqa: E402 - needs Mitsuba

pytestmark = pytest.mark.usefixtures("variant")

KNOWN = {"type": "roughconductor", "material": "Au", "distribution": "ggx", "alpha": 0.2}
HEADER = struct.pack("<3i", *merl.SHAPE)


def vector(w):
    return mi.Vector3f(*map(mi.Float, np.ascontiguousarray(w, np.float32)))


def centres(numbers, azimuth=0.0):
    """Both directions at the centres of bins, ``(3, bins)``; in float64, from the angles."""
    i, j, k = (np.stack(np.unravel_index(numbers, merl.SHAPE)) + 0.5) / np.array(merl.SHAPE)[:, None]
    theta_h, theta_d, phi_d = i**2 * np.pi / 2, j * np.pi / 2, k * np.pi
    x, y, z = np.sin(theta_d) * np.cos(phi_d), np.sin(theta_d) * np.sin(phi_d), np.cos(theta_d)
    x, z = np.cos(theta_h) * x + np.sin(theta_h) * z, np.cos(theta_h) * z - np.sin(theta_h) * x
    wi = np.stack([np.cos(azimuth) * x - np.sin(azimuth) * y, np.sin(azimuth) * x + np.cos(azimuth) * y, z])
    h = np.stack([np.sin(theta_h) * np.cos(azimuth), np.sin(theta_h) * np.sin(azimuth), np.cos(theta_h)])
    return wi, 2 * np.sum(wi * h, axis=0) * h - wi


def pairs(count=4000, least=0.0, seed=0):
    """Pairs of directions above the surface, by ``least`` at least; half of them are near the mirror direction."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(2, 3, 2 * count))
    w[:, 2] = np.abs(w[:, 2])
    w[1, :, ::2] = w[0, :, ::2] * [[-1], [-1], [1]] + 0.1 * w[1, :, ::2]
    w = (w / np.linalg.norm(w, axis=1, keepdims=True)).astype(np.float32)
    return w[:, :, (w[:, 2] > least).all(axis=0)][:, :, :count]


def values(bsdf, wi, wo):
    si = dr.zeros(mi.SurfaceInteraction3f, wi.shape[1])
    si.wi = vector(wi)
    return bsdf.eval(mi.BSDFContext(), si, vector(wo)).numpy()


@pytest.fixture(scope="module")
def known(backend, tmp_path_factory):
    """A file of the BSDF :data:`KNOWN` at the centres of all bins; -1 where a direction is below the surface."""
    mi.set_variant(f"{backend}_ad_rgb")
    wi, wo = centres(np.arange(merl.COUNT))
    stored = values(mi.load_dict(KNOWN), wi, wo) / wo[2].astype(np.float32)
    stored = np.where((wi[2] > 0) & (wo[2] > 0), stored / np.array(merl.SCALES)[:, None], -1)
    path = tmp_path_factory.mktemp("merl") / "gold.binary"
    path.write_bytes(HEADER + stored.astype("<f8").tobytes())
    return path, stored


@pytest.fixture(scope="module")
def gold(known):
    cn.mitsuba.register()
    return mi.load_dict({"type": "merl", "filename": str(known[0])})


# ---- MERL --------------------------------------------------------------------------------------------------


def test_bins_are_those_of_the_reference():
    for wi, wo in (pairs(), centres(np.arange(0, merl.COUNT, 101), azimuth=2.0)):
        above = (wi[2] > 0) & (wo[2] > 0)
        wi, wo = wi[:, above], wo[:, above]
        found = merl.bins(vector(wi), vector(wo)).numpy()
        assert np.array_equal(found, merl.bins(vector(wo), vector(wi)).numpy())
        expected = ref.merl_bins(wi.astype(np.float64), wo.astype(np.float64))
        apart = np.abs(np.stack(np.unravel_index(found, merl.SHAPE)) - expected)
        apart[2] = np.minimum(apart[2], 180 - apart[2])
        assert (apart > 0).any(axis=0).mean() < 2e-3 and apart.max() <= 1  # at the edges of bins
    assert np.array_equal(np.ravel_multi_index(ref.merl_bins(*centres(np.arange(7, 9000))), merl.SHAPE), range(7, 9000))


def test_values_at_the_centres_of_bins(gold, known):
    numbers = np.random.default_rng(0).integers(merl.COUNT, size=20000)
    wi, wo = centres(numbers)
    above = (wi[2] > 0) & (wo[2] > 0)
    wi, wo, stored = wi[:, above], wo[:, above], known[1][:, numbers[above]]
    found = values(gold, wi, wo)
    assert above.mean() > 0.3 and (found > 0).all()
    np.testing.assert_allclose(found, stored * np.array(merl.SCALES)[:, None] * wo[2], rtol=1e-5)
    np.testing.assert_allclose(found, values(mi.load_dict(KNOWN), wi, wo), rtol=1e-5)


def test_values_between_the_centres(gold, known):
    """The known BSDF lies between the bins around, and the value found is one of them: bins are what it is off by."""
    wi, wo = pairs(least=0.1)
    i, j, k = ref.merl_bins(wi.astype(np.float64), wo.astype(np.float64))
    table = known[1][1].reshape(merl.SHAPE) * merl.SCALES[1]
    around = np.stack([
        table[np.clip(i + a, 0, 89), np.clip(j + b, 0, 89), (k + c) % 180]
        for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)
    ])  # fmt: skip
    whole = around.min(axis=0) >= 0
    assert whole.mean() > 0.9
    found, true = (values(bsdf, wi, wo)[1] for bsdf in (gold, mi.load_dict(KNOWN)))
    inside = (true / wo[2] > 0.99 * around.min(axis=0)) & (true / wo[2] < 1.01 * around.max(axis=0))
    assert inside[whole].all()
    assert np.abs(found - true)[whole].sum() < 0.03 * true[whole].sum()


def test_reciprocal_and_one_sided(gold):
    wi, wo = pairs()
    there, back = values(gold, wi, wo) / wo[2], values(gold, wo, wi) / wi[2]
    np.testing.assert_allclose(there, back, rtol=1e-6)
    under = wi * np.float32([[1], [1], [-1]])
    for a, b in ((under, wo), (wo, under), (wi * np.float32(np.nan), wo)):
        assert not values(gold, a, b).any()


def test_unmeasured_bins_are_black(gold, known):
    """Those at the horizon, which a negative number marks."""
    wi, wo = pairs(20000)
    numbers = np.ravel_multi_index(ref.merl_bins(wi.astype(np.float64), wo.astype(np.float64)), merl.SHAPE)
    dark = known[1][0, numbers] < 0
    assert dark.any() and np.isin(values(gold, wi, wo)[0, dark], 0).mean() > 0.9  # others are at the edges of bins


def test_samples_and_furnace(gold):
    """The light of a white sky that is reflected is that of the known BSDF, and samples are not much noisier."""
    reference, n = mi.load_dict(KNOWN), 1 << 15
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(1, n)
    si, one, two = dr.zeros(mi.SurfaceInteraction3f, n), sampler.next_1d(), sampler.next_2d()
    dr.eval(one, two)
    for angle in dr.opaque(mi.Float, 0), dr.opaque(mi.Float, 0.8), dr.opaque(mi.Float, 1.3):
        si.wi = mi.Vector3f(dr.sin(angle), 0, dr.cos(angle))
        ours, true = (bsdf.sample(mi.BSDFContext(), si, one, two)[1].numpy() for bsdf in (gold, reference))
        np.testing.assert_allclose(ours.mean(axis=1), true.mean(axis=1), rtol=0.015)
        assert ours[0].std() < 2 * true[0].std() + 0.1
    bs, weight = gold.sample(mi.BSDFContext(), si, one, two)
    value, density = gold.eval_pdf(mi.BSDFContext(), si, bs.wo)
    kept = bs.pdf.numpy() > 0
    assert 0.8 < kept.mean() <= 1
    np.testing.assert_allclose(bs.pdf.numpy()[kept], density.numpy()[kept], rtol=1e-4)
    np.testing.assert_allclose((weight * bs.pdf).numpy()[:, kept], value.numpy()[:, kept], rtol=1e-4, atol=1e-6)
    weight, alpha = (float(v[0]) for v in gold.lobe)
    assert weight > 0.8 and alpha == pytest.approx(0.2, rel=0.25)


def test_a_copy_reads_its_file(gold):
    again = copy.deepcopy(gold)
    wi, wo = pairs(50)
    assert again.id() == gold.id() and np.array_equal(values(again, wi, wo), values(gold, wi, wo))
    assert str(again) == str(gold) and "gold.binary" in str(gold)


def test_pictures(gold):
    """In a scene, by its pointers: that of the known BSDF."""

    def picture(bsdf):
        film = {"type": "hdrfilm", "width": 6, "height": 6, "rfilter": {"type": "box"}}
        view = mi.ScalarTransform4f().look_at([0, 0, 4], [0, 0, 0], [0, 1, 0])
        scene = mi.load_dict({
            "type": "scene", "sensor": {"type": "perspective", "fov": 25, "to_world": view, "film": film},
            "light": {"type": "point", "position": [2, 2, 4], "intensity": 20.0},
            "ball": {"type": "sphere", "bsdf": bsdf},
        })  # fmt: skip
        return mi.render(scene, integrator=mi.load_dict({"type": "direct"}), spp=64).numpy()

    ours, true = picture(gold), picture(KNOWN)
    assert np.abs(ours - true).mean() < 0.03 * true.mean() and true.mean() > 0.05


@pytest.mark.parametrize(
    "name, size, header, at, error, message",
    [
        ("short", merl.SIZE - 8, HEADER, None, ValueError, "not a MERL file, or truncated: it has 34992004 bytes"),
        ("long", merl.SIZE + 8, HEADER, None, ValueError, "not a MERL file, or truncated: it has 34992020 bytes"),
        ("empty", 0, b"", None, ValueError, "it has 0 bytes, not 34992012"),
        (
            "foreign",
            merl.SIZE,
            b"P6 1000 1000",
            None,
            ValueError,
            r"it begins with \(824194640, .*\(90, 90,",
        ),
        ("damaged", merl.SIZE, HEADER, np.nan, ValueError, "a damaged MERL file: not all of its values are finite"),
        ("large", merl.SIZE, HEADER, 1e300, ValueError, "a damaged MERL file: not all of its values are finite"),
        (".", None, b"", None, IsADirectoryError, "Is a directory"),
        ("missing", None, b"", None, FileNotFoundError, "No such file"),
    ],
)
def test_files_that_are_refused(tmp_path, name, size, header, at, error, message):
    path = tmp_path / name
    if size is not None:
        path.write_bytes(header)
        os.truncate(path, size)
    if at is not None:
        with open(path, "r+b") as file:
            file.seek(12 + 8 * 1000)
            file.write(struct.pack("<d", at))
    with pytest.raises(error, match=message):
        cn.mitsuba.MERL(path)
    with pytest.raises(RuntimeError, match=f"{tmp_path}.*{message}"):
        mi.load_dict({"type": "merl", "filename": str(path)})


def test_names_that_are_refused():
    with pytest.raises(TypeError, match="MERL: filename is a int; a string or path is needed"):
        cn.mitsuba.MERL(3)
    with pytest.raises(RuntimeError, match="merl: got no filename; that of a MERL file is needed"):
        mi.load_dict({"type": "merl"})


# ---- Learning them -----------------------------------------------------------------------------------------


def learn(reference, monkeypatch, steps=200):
    """With two steps for the lobes, which nothing here is about."""
    module = sys.modules[cn.mitsuba.BSDFFit.__module__]
    fit_lobes = module.fit_lobes
    with monkeypatch.context() as patch:
        patch.setattr(module, "fit_lobes", lambda *args: fit_lobes(*args[:4], 2, *args[5:]))
        field = cn.NeuralField(None, cn.MLP(8, 3, 16, 2, bias=True))
        return cn.mitsuba.fit_bsdf(field, reference, steps=steps, samples=2048, lr=1e-2, seed=3)


def test_a_file_is_learned_as_the_bsdf_in_it(gold, monkeypatch):
    found, direct = (learn(reference, monkeypatch) for reference in (gold, mi.load_dict(KNOWN)))
    assert found.relative_error < 1.1 * direct.relative_error + 0.02 and direct.relative_error < 0.3
    assert found.reference_albedo == pytest.approx(direct.reference_albedo, rel=0.01)
    assert found.reference_spread < 1.5 * direct.reference_spread + 0.1


def distribution(theta, alpha):
    """GGX."""
    return alpha**2 / (np.pi * ((alpha**2 - 1) * np.cos(theta) ** 2 + 1) ** 2)


def projected_area(theta, alpha):
    """Of GGX: the cosine by Smith's masking."""
    return np.cos(theta) * (1 + np.sqrt(1 + (alpha * np.tan(theta)) ** 2)) / 2


def rgl_file(path, alpha, color, azimuths=1, **changes):
    r"""A material in the format of Dupuy and Jakob 2018, with the BSDF times the cosine
    :math:`c D(h) / 4 \sigma(\omega_i)`; the density that its parameterization is made of is that of the same normals.
    With several ``azimuths`` of incidence :math:`\varphi` it is anisotropic: times :math:`1/2 + |\varphi| / \pi`.
    """
    theta_i, u = np.linspace(0, np.pi / 2 - 0.02, 8), np.linspace(0, 1, 64)
    phi_i = np.linspace(-np.pi, np.pi, azimuths) if azimuths > 1 else np.zeros(1)
    tint = 0.5 + np.abs(phi_i) / np.pi if azimuths > 1 else np.ones(1)
    theta, phi = u**2 * np.pi / 2, (2 * np.linspace(0, 1, 32) - 1) * np.pi
    sigma = projected_area(np.minimum(theta, np.pi / 2 - 1e-4), alpha)
    apart = phi[:, None] - phi_i[:, None, None, None]
    cosine = np.sin(theta_i[:, None, None]) * np.sin(theta) * np.cos(apart)
    cosine = np.maximum(cosine + np.cos(theta_i[:, None, None]) * np.cos(theta), 1e-3)
    vndf = distribution(theta, alpha) * np.maximum(u * np.sin(theta), 1e-6) * cosine
    arrays = {
        "theta_i": theta_i, "phi_i": phi_i, "ndf": np.tile(distribution(theta, alpha), (2, 1)),
        "sigma": np.tile(sigma, (2, 1)), "vndf": vndf, "luminance": np.ones((azimuths, 8, 4, 4)),
        "rgb": np.ones((azimuths, 8, 3, 4, 4)) * np.multiply.outer(tint, np.reshape(color, (1, 3, 1, 1))),
    } | changes  # fmt: skip
    arrays = {name: np.ascontiguousarray(v, np.float32) for name, v in arrays.items() if v is not None}
    mi.tensor_io.write(str(path), description="made", jacobian=np.ones(1, np.uint8), **arrays)


@pytest.mark.parametrize("azimuths", [1, 9], ids=["isotropic", "anisotropic"])
def test_rgl_files_are_learned(tmp_path, monkeypatch, azimuths):
    """By Mitsuba's own plugin."""
    alpha, color = 0.4, [0.9, 0.5, 0.2]
    rgl_file(tmp_path / "made_rgb.bsdf", alpha, color, azimuths)
    measured = cn.mitsuba.rgl(tmp_path / "made_rgb.bsdf")
    wi, wo = pairs(500, least=0.2)
    theta_h = np.arccos(np.clip(ref.interface_normals(wi, wo, 1.0)[2], -1, 1))
    expected = distribution(theta_h, alpha) / (4 * projected_area(np.arccos(np.minimum(wi[2], 1)), alpha))
    if azimuths > 1:
        expected *= 0.5 + np.abs(np.arctan2(wi[1], wi[0])) / np.pi
    np.testing.assert_allclose(values(measured, wi, wo), np.outer(color, expected), rtol=0.02 if azimuths == 1 else 0.1)
    if azimuths == 1:
        found = learn(measured, monkeypatch)
        assert found.relative_error < 0.3 and found.albedo == pytest.approx(found.reference_albedo, rel=0.1)


def test_where_fields_of_rgl_files_end():
    """By type: integers of 8 to 64 bits without and with sign, and floating point numbers of 16 to 64 bits."""
    for kind, dtype in enumerate(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"], 1):
        table = struct.pack("<H3sHBQ2Q", 3, b"any", 2, kind, 100, 3, 5)
        fields, end = rgl._fields(rgl._START.pack(b"tensor_file", 1, 0, 1) + table, "here")
        assert fields == {"any": (kind, 100, 15)} and end == 100 + 15 * np.dtype(dtype).itemsize


def test_rgl_files_that_are_refused(tmp_path):
    path = tmp_path / "made_rgb.bsdf"
    rgl_file(path, 0.4, [0.9, 0.5, 0.2])
    whole = path.read_bytes()
    cases = [
        (whole[:-4], f"a truncated RGL file: it has {len(whole) - 4} of at least {len(whole)} bytes"),
        (whole[: len(whole) // 2], "a truncated RGL file: it has"),
        (whole[:100], "a truncated or damaged RGL file: its list of fields cannot be read"),
        (whole[:11], "not an RGL file: it does not begin like one"),
        (b"P6 1000 1000", "not an RGL file: it does not begin like one"),
        (whole[:-4] + struct.pack("<f", np.nan), "a damaged RGL file: not all numbers of rgb are finite"),
        (whole.replace(b"ndf\x02\x00\n", b"ndf\x02\x00\x09", 1), "a damaged RGL file: ndf is not in single precision"),
    ]
    for data, message in cases:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            cn.mitsuba.rgl(path)
    for name, message in (
        ("rgb", "without the field rgb; take the file with rgb in"),
        ("ndf", "the fields ndf are miss"),
    ):
        rgl_file(path, 0.4, [0.9, 0.5, 0.2], **{name: None})
        with pytest.raises(ValueError, match=message):
            cn.mitsuba.rgl(path)
    with pytest.raises(FileNotFoundError):
        cn.mitsuba.rgl(tmp_path / "missing")
    with pytest.raises(TypeError, match="rgl: filename is a int; a string or path is needed"):
        cn.mitsuba.rgl(3)
