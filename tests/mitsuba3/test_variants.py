"""Every variant of the wheel: colors as luminances and spectra, light that is depolarized, scalar ones refused."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

KINDS = ("mono", pytest.param("mono_polarized", marks=pytest.mark.slow), "spectral", "spectral_polarized")
WAVELENGTHS = (420.0, 510.0, 600.0, 690.0)


def set_variant(name):
    """Skips where a copy of Mitsuba lacks the variant."""
    try:
        mi.set_variant(name)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(params=KINDS)
def kind(backend, request):
    """One of the variants that do not compute with RGB; the one after it is RGB again."""
    cn.mitsuba.register()
    set_variant(f"{backend}_ad_{request.param}")
    yield request.param
    mi.set_variant(f"{backend}_ad_rgb")


def made(inputs, outputs, seed=1, **options):
    network = cn.MLP(inputs, outputs, width=8, depth=1, bias=True, activation="softplus", **options)
    return cn.mitsuba.build(cn.NeuralField(None, network), seed=seed)


def points(cls, count=20):
    it, rng = dr.zeros(cls, count), np.random.default_rng(0)
    it.p = mi.Point3f(*map(mi.Float, rng.random((3, count)).astype(np.float32)))
    it.wi = dr.normalize(mi.Vector3f(0.3, 0.1, 0.9))
    if hasattr(it, "uv"):
        it.uv = mi.Point2f(it.p.x, it.p.y)
    if mi.is_spectral:
        it.wavelengths = type(it.wavelengths)(*WAVELENGTHS)
    return it


def expected(colors, bounded):
    """What Mitsuba makes of the columns of ``colors``, one by one."""
    if mi.is_monochromatic:
        return np.array([[0.212671, 0.715160, 0.072169] @ colors])
    columns = []
    for color in colors.T:
        scale = 1.0 if bounded else 2 * max(color.max(), 1e-9)
        coefficients = mi.Vector3f(*map(float, mi.srgb_model_fetch(list(map(float, color / scale)))))
        dr.make_opaque(coefficients)  # as literals, each color would be a kernel
        spectrum = mi.srgb_model_eval(coefficients, type(points(mi.SurfaceInteraction3f).wavelengths)(*WAVELENGTHS))
        columns.append(scale * np.array(spectrum)[:, 0])
    return np.array(columns).T


def first(spectrum):
    """The intensity of a spectrum, polarized or not; the rest of a matrix is 0."""
    if mi.is_polarized and dr.depth_v(spectrum) == 4:
        rows = [[np.array(spectrum[i][j]) for j in range(4)] for i in range(4)]
        assert not any(rows[i][j].any() for i in range(4) for j in range(4) if i or j)
        return rows[0][0]
    return np.array(spectrum)


def close(found, wanted):
    half = "cuda" in mi.variant()
    found = np.broadcast_to(found, np.shape(wanted))
    np.testing.assert_allclose(found, wanted, rtol=2e-2 if half else 1e-3, atol=5e-3 if half else 1e-4)


def test_colors(kind):
    si, it = points(mi.SurfaceInteraction3f), points(mi.MediumInteraction3f)
    field = made(2, 3, output_activation="sigmoid")
    y = field([si.uv.x, si.uv.y]).numpy()
    close(first(cn.mitsuba.NeuralTexture(field).eval(si)), expected(y, True))
    close(first(cn.mitsuba.NeuralTexture(field, clamp=False).eval(si)), expected(y, False))
    volume = cn.mitsuba.NeuralVolume(made(3, 3, output_activation="sigmoid"))
    close(first(volume.eval(it)), expected(volume.field(list(it.p)).numpy(), False))
    assert volume.max() >= first(volume.eval(it)).max()
    decoder = cn.mitsuba.Decoder(made(8, 3))
    bsdf, wo = cn.mitsuba.NeuralBSDF(decoder), dr.normalize(mi.Vector3f(-0.2, 0.4, 0.7))
    color = np.array(decoder.evaluate([], si.wi, wo))
    close(first(bsdf.eval(mi.BSDFContext(), si, wo)), expected(color, False))
    _, weight = bsdf.sample(mi.BSDFContext(), si, mi.Float(0.3), mi.Point2f(0.4, 0.6))
    assert type(weight) is mi.Spectrum and (first(weight) > 0).all()
    smooth = mi.load_dict({"type": "dielectric"})
    glass = cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(made(12, 3), eta=1.5), specular=smooth)
    color = np.array(glass.decoder.evaluate([], si.wi, -wo))
    close(first(glass.eval(mi.BSDFContext(), si, -wo)), expected(color, False))
    part, its_own = mi.BSDFContext(), mi.BSDFContext()
    part.component, its_own.component = 3, 1
    weights = [bsdf.sample(c, si, mi.Float(0.3), mi.Point2f(0.4))[1] for bsdf, c in ((glass, part), (smooth, its_own))]
    np.testing.assert_allclose(*map(np.array, weights), rtol=1e-5)
    _, weight, pdf = cn.mitsuba.NeuralPhase(made(3, 1)).sample(mi.PhaseFunctionContext(), it, 0.5, mi.Point2f(0.5, 0.2))
    assert type(weight) is mi.Spectrum and (first(weight) == 1).all() and dr.all(pdf > 0)
    medium = cn.mitsuba.NeuralMedium(made(3, 7))
    sigma, albedo, light = medium.coefficients(it, None, True)
    y = 1 / (1 + np.exp(-medium.field(list(it.p)).numpy()[1:]))
    close(first(albedo), expected(y[:3], True))
    si.wavelengths = it.wavelengths
    white = np.array(mi.load_dict({"type": "d65"}).eval(si)) if mi.is_spectral else 1
    close(first(light), expected(y[3:], False) * sigma.numpy() * white)


def test_skies(kind):
    si = points(mi.SurfaceInteraction3f)
    sky = cn.mitsuba.NeuralEnvmap(made(3, 3, output_activation="softplus"), resolution=8)
    white = np.array(mi.load_dict({"type": "d65"}).eval(si)) if mi.is_spectral else 1
    close(first(sky.eval(si)), expected(sky.field(list(-si.wi)).numpy(), False) * white)
    ds, weight = sky.sample_direction(si, mi.Point2f(0.3, 0.6))
    si.wi = -ds.d
    close(first(weight) * ds.pdf.numpy(), first(sky.eval(si)))


def test_spectra_of_fields(kind):
    """Fields that take a wavelength: reflectances as they are, and densities of wavelengths of emitters."""
    si = points(mi.SurfaceInteraction3f)
    field = made(3, 1, output_activation="sigmoid")
    if not mi.is_spectral:
        with pytest.raises(
            ValueError, match=r"^NeuralTexture: wavelengths=True needs a spectral variant, and the Mits"
        ):
            cn.mitsuba.NeuralTexture(field, wavelengths=True)
        return
    texture = cn.mitsuba.NeuralTexture(field, wavelengths=True)
    wanted = [field([si.uv.x, si.uv.y, mi.Float((w - 360) / 470)]).numpy()[0] for w in WAVELENGTHS]
    close(first(texture.eval(si)), np.array(wanted))
    assert 0 < float(texture.mean()[0]) < texture.max() <= 1
    wavelengths, weight = texture.sample_spectrum(si, type(si.wavelengths)(0.25))
    assert dr.all(wavelengths == 360 + 0.25 * 470, axis=None)
    close(first(weight)[0], 470 * field([si.uv.x, si.uv.y, mi.Float(0.25)]).numpy()[0])
    with pytest.raises(
        RuntimeError, match=r"^NeuralTexture: a field that takes a wavelength returns a spectrum, and has no eva"
    ):
        texture.eval_1(si)
    with pytest.raises(ValueError, match="field has 3 inputs; 2 is needed"):
        cn.mitsuba.NeuralTexture(field)


def test_what_takes_no_such_variant(kind):
    with pytest.raises(
        RuntimeError, match=r"^RadianceCache: it works with colors of three numbers, and the Mitsuba va"
    ):
        cn.mitsuba.RadianceCache(None)
    with pytest.raises(
        RuntimeError, match=r"^fit_bsdf: it works with colors of three numbers, and the Mitsuba variant"
    ):
        cn.mitsuba.fit_bsdf(None, None)
    cn.mitsuba.register()
    for name, plugin in (("NeuralPath", "neural_path"), ("NeuralVolpath", "neural_volpath")):
        if mi.is_polarized:
            said = "it does not follow how light is polarized, and the Mitsuba variant is"
            with pytest.raises(RuntimeError, match=f"^{name}: {said}"):
                getattr(cn.mitsuba, name)()
            with pytest.raises(RuntimeError, match=f": {plugin}: {said}") as error:
                mi.load_dict({"type": plugin})
            assert "\n" not in str(error.value)  # no traceback of Python
        else:
            getattr(cn.mitsuba, name)()
            mi.load_dict({"type": plugin})


def test_pictures_of_spectra(backend):
    """``neural_path`` and ``path`` are one picture here, too."""
    set_variant(f"{backend}_ad_spectral")
    try:
        view = mi.ScalarTransform4f().look_at([0, 0, 4], [0, 0, 0], [0, 1, 0])
        film = {"type": "hdrfilm", "width": 4, "height": 4, "rfilter": {"type": "box"}}
        bsdf = cn.mitsuba.NeuralBSDF(cn.mitsuba.Decoder(made(9, 3)), [0.3])
        scene = mi.load_dict({
            "type": "scene", "light": {"type": "constant"}, "ball": {"type": "sphere", "bsdf": bsdf},
            "sensor": {"type": "perspective", "fov": 30, "to_world": view, "film": film},
        })  # fmt: skip
        options = {"max_depth": 3}
        theirs, ours = mi.load_dict({"type": "path"} | options), cn.mitsuba.NeuralPath(**options)
        a, b = (mi.render(scene, integrator=i, spp=4).numpy() for i in (theirs, ours))
        np.testing.assert_allclose(b, a, rtol=1e-2 if backend == "cuda" else 1e-4)
    finally:
        mi.set_variant(f"{backend}_ad_rgb")


@pytest.mark.parametrize("variant", ["scalar_rgb", "scalar_spectral"])
def test_scalar_variants_are_refused_in_a_sentence(backend, variant):
    """The parser adds where it was, and nothing adds lines of Python."""
    cn.mitsuba.register()
    set_variant(variant)
    try:
        said = f"the Mitsuba variant is {variant}; call mitsuba.set_variant('llvm_ad_rgb' or 'cuda_ad_rgb')."
        for name in ("neural_texture", "neural_bsdf", "neural_path", "neural_medium", "neural_phase", "neural_volpath"):
            with pytest.raises(RuntimeError) as error:
                mi.load_dict({"type": name})
            assert str(error.value).endswith(f": {name}: {said}"), error.value
            assert "\n" not in str(error.value) and "File" not in str(error.value)
        with pytest.raises(RuntimeError) as error:
            mi.load_string('<bsdf version="3.0.0" type="neural_bsdf"/>')
        assert str(error.value).endswith(said) and "\n" not in str(error.value)
    finally:
        mi.set_variant(f"{backend}_ad_rgb")
    name = cn.mitsuba.hand_over("in no scalar variant", made(3, 1, output_activation="softplus"))
    medium = {"type": "heterogeneous", "sigma_t": {"type": "neural_volume", "field": name, "maximum": 2.0}}
    assert "NeuralVolume[max=2" in str(mi.load_dict(medium))
