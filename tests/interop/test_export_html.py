"""Exported web pages: what is in them, and what they draw, beside pictures by coopnet.image and coopnet.mesh.

Pictures need a browser, which ``make test-export`` installs; without it they are skipped.
"""

from __future__ import annotations

import base64
import hashlib

import drjit as dr
import numpy as np
import pytest
from support.pages import Elements, page_data

import coopnet as cn
from coopnet.interop.export import View

pytest.importorskip("PIL")

from coopnet import image, mesh

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> <!-- \u2028 "
    "${alert(3)} `@DATA@ \\ \" ' & é \U0001f600"
)
#: Five colours of the map, the first to the last.
VIRIDIS = ["440154", "3b528b", "21918c", "5ec962", "fde725"]


def plane(outputs: int = 3, dropout: float = 0.0) -> cn.NeuralField:
    """An image of some colours."""
    network = cn.MLP(-1, outputs, width=16, depth=1, output_activation="sigmoid", dropout=dropout)
    field = cn.NeuralField(cn.Sinusoidal(4, in_features=2), network).build("llvm", seed=3)
    rng = np.random.default_rng(0)
    for p in cn.nn.parameters.parameters(field):
        field.set_matrix(p.name, rng.normal(size=p.shape) * 0.7)
    return field


@pytest.fixture(scope="module")
def ball() -> cn.NeuralField:
    """A bumpy ball, not in the middle of the cube."""
    encoding = cn.HashGrid(3, n_levels=4, base_resolution=8, hashmap_size=2**12, per_level_scale=1.5)
    field = cn.NeuralField(encoding, cn.MLP(-1, 1, width=16, depth=1)).build("llvm", seed=1)

    def batch(key):
        p = cn.uniform(3, key, dr.llvm.ad.Float, 8192)
        r = dr.norm(dr.llvm.ad.Array3f(p[0] - 0.55, p[1] - 0.45, p[2] - 0.5))
        return list(p), [r - 0.3 + 0.02 * dr.sin(18 * p[0])]

    cn.fit(field, batch, 300, lr=1e-2, loss="l1", progress=False)
    return field


# ---- What is in a page ---------------------------------------------------------------------------------------


def test_a_page_is_one_file_that_may_ask_for_nothing(tmp_path):
    field = plane()
    written = cn.export(field, "html", tmp_path / "page.html")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"] and written.weights is None
    page = Elements(written.source.read_text("utf-8"))
    style, _, script = page.texts
    hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (script, style)]
    policy = dict(page.attributes)["content"]
    assert policy == next(v for k, v in page.attributes if k == "content" and v and "default-src" in v)
    assert "default-src 'none'" in policy and all(f"sha256-{h}'" in policy for h in hashes)
    assert not {"src", "href", "action", "onload"} & {name for name, _ in page.attributes}
    assert "http" not in script and "http" not in style


@pytest.mark.parametrize("precision", ["single", "half"])
def test_the_weights_are_the_file_of_weights(tmp_path, precision):
    field = plane()
    page = page_data(cn.export(field, "html", tmp_path / "page.html", precision=precision).source)
    beside = cn.export(field, "wgsl", tmp_path / "f.wgsl", precision=precision, inline=False)
    assert base64.b64decode(page["weights"]) == beside.weights.read_bytes()
    assert beside.source.read_text() in page["wgsl"]


def test_titles_do_not_break_out(tmp_path):
    plain = cn.export(plane(), "html", tmp_path / "plain.html").source
    hostile = cn.export(plane(), "html", tmp_path / "hostile.html", view=View(title=HOSTILE)).source
    a, b = Elements(plain.read_text("utf-8")), Elements(hostile.read_text("utf-8"))
    assert (a.names, a.attributes) == (b.names, b.attributes)
    assert (a.texts[0], a.texts[2]) == (b.texts[0], b.texts[2])
    assert page_data(hostile)["title"] == HOSTILE
    assert b.texts[1].isascii() and not set("<>&") & set(b.texts[1])


@pytest.mark.parametrize("region", [(8, 1, 16, 2), (1, 8, 2, 16)])
def test_deviations_are_white_where_few_places_exceed_them(tmp_path, region):
    """They grow with the coordinates."""
    field = cn.NeuralField(None, cn.Sequential(cn.Dropout(0.5), cn.Linear(2, 1))).build("llvm")
    field.set_matrix("layers.1.weights", np.ones((1, 2)))
    written = cn.export(field, "html", tmp_path / "page.html", view=View(region=region))
    deviation = image.render_mc(field, 64, 64, 8, 1, region)[1]
    white = np.quantile(np.sqrt(np.mean(np.square(deviation), axis=2)), 0.98)
    assert page_data(written.source)["white"] == float(f"{white:.1g}")


@pytest.mark.parametrize(
    ("outputs", "colour"),
    [
        (1, "vec3(y[0])"), (2, "vec3(y[0], y[1], 0.0)"), (3, "vec3(y[0], y[1], y[2])"),
        (4, "mix(vec3(checks), vec3(y[0], y[1], y[2]), clamp(y[3], 0.0, 1.0))"),
    ],
)  # fmt: skip
def test_colours_of_images(tmp_path, outputs, colour):
    page = page_data(cn.export(plane(outputs), "html", tmp_path / "page.html").source)
    assert all(f"return {colour};" in page[target] for target in ("wgsl", "glsl"))


def test_what_is_shown_unless_asked_otherwise(tmp_path):
    field = cn.NeuralField(None, cn.Linear(3, 1)).build("llvm")
    page = page_data(cn.export(field, "html", tmp_path / "page.html").source)
    assert (page["title"], page["view"], page["region"]) == ("Neural field", "surface", [0, 0, 0, 1, 1, 1])
    assert (page["angles"], page["up"], page["smooth"]) == ([30, 20], "y", False)
    page = page_data(cn.export(plane(dropout=0.2), "html", tmp_path / "page.html").source)
    assert (page["view"], page["region"], page["shown"], page["samples"]) == ("image", [0, 0, 1, 1], 0, 32)


def test_weights_that_are_not_finite_are_written(tmp_path):
    field = plane()
    matrix = field.matrix("network.layers.0.weights").copy()
    matrix[0, 0], matrix[1, 1] = np.nan, np.inf
    field.set_matrix("network.layers.0.weights", matrix)
    page = page_data(cn.export(field, "html", tmp_path / "page.html").source)
    assert np.isnan(np.frombuffer(base64.b64decode(page["weights"])[64:], np.float32)).any()


@pytest.mark.parametrize(
    ("field", "options", "words"),
    [
        (cn.NeuralField(None, cn.Linear(4, 3), in_features=4), {}, "4 coordinates and 3 values"),
        (cn.NeuralField(None, cn.Linear(2, 5), in_features=2), {}, "2 coordinates and 5 values"),
        (cn.NeuralField(None, cn.Linear(3, 3), in_features=3), {}, "3 coordinates and 3 values"),
        (cn.NeuralField(None, cn.Linear(3, 1), in_features=3), {"view": View(region=(0, 0, 1, 1))}, "6 numbers"),
        (cn.NeuralField(None, cn.Linear(2, 1), in_features=2), {"view": View(show="mean")}, "show of view: only for"),
        (cn.NeuralField(None, cn.Linear(2, 1), in_features=2), {"dropout": True}, "not for web pages"),
        (cn.NeuralField(None, cn.Linear(2, 1), in_features=2), {"name": "../f"}, "name is '../f'"),
        (cn.NeuralField(None, cn.Linear(2, 1), in_features=2), {"name": "sdf"}, "a web page has no function to call"),
        (cn.NeuralField(None, cn.Linear(2, 1), in_features=2), {"grids": "uint8"}, "the field has no grids"),
        (cn.NeuralField(None, cn.Linear(2, 1), in_features=2), {"view": View(masks=8)}, "masks of view: only for"),
        (
            cn.NeuralField(None, cn.Linear(2, 1), in_features=2), {"view": View(azimuth=3, smooth=True)},
            "azimuth and smooth of view: only for surfaces, but the field has 2 coordinates",
        ),
        (
            cn.NeuralField(None, cn.MLP(3, 1, dropout=0.1)), {"view": View(show="mean")},
            "show of view: only for images with dropout",
        ),
        (
            cn.NeuralField(None, cn.MLP(3, 1)), {"view": View(shape="square", light=(0, 0))},
            "shape and light of view: only for materials, but the field has 3 coordinates",
        ),
    ],
)  # fmt: skip
def test_what_no_view_fits_is_refused_in_words(tmp_path, field, options, words):
    with pytest.raises(ValueError, match=words):
        cn.export(field.build("llvm"), "html", tmp_path / "page.html", **options)
    assert not list(tmp_path.iterdir())


def test_views_are_for_pages(tmp_path):
    with pytest.raises(ValueError, match="view is for web pages, but target is 'c'"):
        cn.export(plane(), "c", tmp_path / "f.c", view=View())
    with pytest.raises(TypeError, match="view is a dict; a View is needed"):
        cn.export(plane(), "html", tmp_path / "f.html", view={})


@pytest.mark.parametrize(
    "options",
    [
        {"region": 3}, {"region": "0012"}, {"region": (0, 0, 1)}, {"region": (0, 0, 1, 0)},
        {"region": (0, 0, 0, 1, 1, 0)}, {"region": (0, 0, 1, np.nan)},
        {"elevation": 90}, {"azimuth": float("inf")}, {"up": "w"}, {"show": "all"}, {"masks": 1}, {"masks": 1000},
        {"shape": "cube"}, {"light": (0, 91)}, {"light": 3}, {"light": (0, 0, 1)}, {"light": (np.nan, 0)},
        {"intensity": 0}, {"moving": 1},
    ],
)  # fmt: skip
def test_views_out_of_range_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"View: {name} is"):
        View(**options)


# ---- What a page draws ---------------------------------------------------------------------------------------


@pytest.fixture(params=["webgpu", "webgl2"])
def api(request):
    return request.param


def close(drawn: np.ndarray, expected: np.ndarray, mean: float = 1.5 / 255, most: float = 3 / 255) -> None:
    """Is the mean difference small, and that of all but a thousandth of the pixels?"""
    assert drawn.shape == expected.shape
    difference = np.abs(drawn - np.clip(expected, 0, 1)).max(axis=2)
    assert difference.mean() <= mean and np.quantile(difference, 0.999) <= most, (difference.mean(), difference.max())


def colours(y: np.ndarray) -> np.ndarray:
    """As pages show 1 to 4 values."""
    n = y.shape[2]
    if n == 1:
        return np.repeat(y, 3, axis=2)
    if n == 2:
        return np.concatenate([y, np.zeros_like(y[..., :1])], axis=2)
    if n == 3:
        return y
    row, column = np.indices(y.shape[:2]) // 8
    checks = (0.6 + 0.2 * ((row + column) % 2))[..., None]
    return checks + (y[..., :3] - checks) * y[..., 3:]


@pytest.mark.parametrize("outputs", [1, 2, 3, 4])
def test_images(browser, api, tmp_path, outputs):
    field, region = plane(outputs), (0.1, 0.2, 0.6, 0.4)
    written = cn.export(field, "html", tmp_path / "page.html", view=View(title=HOSTILE, region=region))
    with browser.open(written.source, api, 96, 64) as page:
        drawn = page.picture()
        assert page.text("title") == HOSTILE and "alert(3)" in page.page.title()
        assert {"webgpu": "WebGPU", "webgl2": "WebGL 2"}[api] in page.text("time") and " ms" in page.text("time")
        assert not page.noted
    close(drawn, colours(image.render(field, 96, 64, region)))


def test_images_in_half_precision(browser, api, tmp_path):
    field = plane()
    written = cn.export(field, "html", tmp_path / "page.html", precision="half")
    with browser.open(written.source, api, 64, 64) as page:
        close(page.picture(), image.render(field, 64, 64, (0, 0, 1, 1)))


def test_images_are_moved_and_enlarged_beyond_the_pixel(browser, api, tmp_path):
    field = plane()
    written = cn.export(field, "html", tmp_path / "page.html")
    with browser.open(written.source, api, 64, 64) as page:
        page.picture()
        box = page.page.locator("#picture").bounding_box()
        x, y = box["x"] + 32, box["y"] + 32
        page.page.mouse.move(x, y)
        page.page.mouse.down()
        page.page.mouse.move(x + 16, y + 8)
        page.page.mouse.up()
        moved = page.picture()
        assert (moved[:8] == 1).all() and (moved[:, :16] == 1).all()  # outside
        close(moved[8:, 16:], image.render(field, 64, 64, (-0.25, -0.125, 1, 1))[8:, 16:])
        page.page.locator("#picture").press("0")
        page.page.mouse.move(x, y)
        page.page.mouse.wheel(0, -500 * np.log(8))  # times 8 about the middle
        close(page.picture(), image.render(field, 64, 64, (0.4375, 0.4375, 0.125, 0.125)))
        assert "× 8.00" in page.text("time")


def test_two_fingers_zoom(browser, tmp_path):
    field = plane()
    written = cn.export(field, "html", tmp_path / "page.html")
    with browser.open(written.source, "webgpu", 64, 64, has_touch=True) as page:
        page.picture()
        device = page.page.context.new_cdp_session(page.page)
        for kind, distance in (("touchStart", 4), ("touchMove", 8), ("touchMove", 16), ("touchEnd", 0)):
            points = [{"x": 32 + s * distance, "y": 32, "id": i} for i, s in enumerate((-1, 1))] if distance else []
            device.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        drawn = page.picture()
        assert "× 4.00" in page.text("time")
    close(drawn, image.render(field, 64, 64, (0.375, 0.375, 0.25, 0.25)))


@pytest.mark.parametrize("shown", ["mean", "deviation"])
def test_uncertainty_is_that_of_the_same_masks(browser, api, tmp_path, shown):
    field = plane(dropout=0.2)
    region = (0, 0.1, 0.9, 0.6)
    mean, deviation = image.render_mc(field, 48, 32, 8, 0, region)
    written = cn.export(field, "html", tmp_path / "page.html", view=View(show=shown, masks=8, region=region))
    white = page_data(written.source)["white"]
    share = np.clip(np.sqrt(np.mean(np.square(deviation), axis=2)) / white, 0, 1)
    assert 0.02 < share.mean() < 0.98  # something to see
    stops = np.array([[int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)] for colour in VIRIDIS])
    mapped = np.stack([np.interp(4 * share, range(5), channel) for channel in stops.T], axis=2)
    with browser.open(written.source, api, 48, 32) as page:
        close(page.picture(), mean if shown == "mean" else mapped)
        page.page.select_option("select", "Mean over masks")
        page.page.locator("input >> nth=0").fill("3")
        close(page.picture(), image.render_mc(field, 48, 32, 3, 0, region)[0])
        page.page.select_option("select", "Field")
        close(page.picture(), image.render(field, 48, 32, region))


@pytest.mark.parametrize("smooth", [True, False])
def test_surfaces(browser, api, tmp_path, ball, smooth):
    view = View(azimuth=40, elevation=25, up="z", smooth=smooth)
    written = cn.export(ball, "html", tmp_path / "page.html", view=view)
    with browser.open(written.source, api, 72, 64) as page:
        drawn = page.picture()
        assert not page.noted
    expected = mesh.render(ball, 72, 64, 40, 25, "z")
    assert 0.1 < np.mean(expected.min(axis=2) < 0.99) < 0.9
    # derivatives are other normals than differences, but not very other ones
    close(drawn, expected, *((2 / 255, 0.2) if smooth else (0.02, 0.5)))


def test_surfaces_are_turned(browser, api, tmp_path, ball):
    written = cn.export(ball, "html", tmp_path / "page.html", view=View(smooth=True))
    with browser.open(written.source, api, 48, 48) as page:
        first = page.picture()
        page.page.locator("#picture").press("ArrowLeft")  # 40 pixels of 0.4 degrees
        close(page.picture(), mesh.render(ball, 48, 48, 14, 20), 3 / 255, 0.3)
        page.page.locator("#picture").press("0")
        assert np.array_equal(page.picture(), first)


def test_webgl2_takes_over_where_there_is_no_webgpu(browser, tmp_path):
    field = plane()
    written = cn.export(field, "html", tmp_path / "page.html")
    with browser.open(written.source, "", 32, 32, without=["webgpu"]) as page:
        close(page.picture(), image.render(field, 32, 32, (0, 0, 1, 1)))
        assert "WebGL 2" in page.text("time")


def test_where_nothing_runs_the_page_says_so(browser, tmp_path):
    written = cn.export(plane(), "html", tmp_path / "page.html")
    with browser.open(written.source, "", without=["webgpu", "webgl2"]) as page:
        assert page.wait() == "failed"
        assert "needs WebGPU, or WebGL 2" in page.text("message") and page.page.locator("#message").is_visible()


#: For a page: devices that have, or get, a fault; ``device`` is the one there is.
FAULTS = {
    "refused": "GPUAdapter.prototype.requestDevice = async () => { throw new Error('refused'); };",
    "no pipeline": "GPUDevice.prototype.createRenderPipelineAsync = async () => { throw new Error('no pipeline'); };",
    "no memory": "const create = GPUDevice.prototype.createBuffer; GPUDevice.prototype.createBuffer = "
    "function (what) { return create.call(this, {...what, size: 2 ** 40}); };",
    "lost": "const request = GPUAdapter.prototype.requestDevice; GPUAdapter.prototype.requestDevice = "
    "async function (...what) { return (window.device = await request.apply(this, what)); };",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_webgl2_takes_over_where_webgpu_ends(browser, tmp_path, fault):
    field = plane()
    written = cn.export(field, "html", tmp_path / "page.html")
    with browser.open(written.source, "", 64, 64, first=FAULTS[fault]) as page:
        if fault == "lost":
            page.picture()
            assert "WebGPU" in page.text("time")
            page.page.evaluate("device.destroy()")
            page.page.wait_for_function("document.getElementById('time').textContent.includes('WebGL 2')")
        close(page.picture(), image.render(field, 64, 64, (0, 0, 1, 1)))
        assert "WebGL 2" in page.text("time") and page.page.locator("button").count() == 1
        page.page.locator("#picture").press("ArrowLeft")  # the new canvas listens
        drawn = page.picture()
        assert (drawn[:, :40] == 1).all() and (drawn[:, 40:] < 1).any()
        page.page.mouse.move(32, 32)
        page.page.mouse.wheel(0, -500 * np.log(4))
        page.picture()
        assert "× 4.00" in page.text("time")


def test_a_lost_device_and_no_other_is_said(browser, tmp_path):
    written = cn.export(plane(), "html", tmp_path / "page.html")
    with browser.open(written.source, "webgpu", 32, 32, first=FAULTS["lost"]) as page:
        page.picture()
        page.page.evaluate("device.destroy()")
        page.page.wait_for_selector("html[data-state=failed]", state="attached")
        assert "device was lost; load the page again" in page.text("message")
    with browser.open(written.source, "webgl2", 32, 32) as page:
        page.picture()
        lose = (
            "document.getElementById('picture').getContext('webgl2').getExtension('WEBGL_lose_context').loseContext()"
        )
        page.page.evaluate(lose)
        page.page.wait_for_selector("html[data-state=failed]", state="attached")
        assert "device was lost; load the page again" in page.text("message")


@pytest.mark.parametrize("size", [(200, 150), (150, 700), (1200, 180), (500, 90)])
def test_pictures_stay_in_odd_windows(browser, api, tmp_path, size):
    written = cn.export(plane(dropout=0.2), "html", tmp_path / "page.html", view=View(show="deviation", masks=2))
    with browser.open(written.source, api, viewport=dict(zip(("width", "height"), size, strict=True))) as page:
        drawn = page.picture()
        assert drawn.shape[1] == size[0] and drawn.shape[0] >= 0.6 * min(size[1], 160)
        middle = drawn[drawn.shape[0] // 2, drawn.shape[1] // 2 - 9 : drawn.shape[1] // 2 + 9]
        assert (middle.max(axis=1) - middle.min(axis=1) > 0.1).all()  # the colours of the map
        assert page.page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.page.locator("button").scroll_into_view_if_needed()
        assert page.page.locator("button").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_by_day_and_night(browser, tmp_path, scheme):
    written = cn.export(plane(dropout=0.2), "html", tmp_path / "page.html", view=View(show="deviation", masks=2))
    options = {"viewport": {"width": 360, "height": 640}, "color_scheme": scheme, "device_scale_factor": 1}
    with browser.open(written.source, "webgpu", **options) as page:
        drawn = page.picture()
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
        assert drawn.shape[0] > 300  # most of the height
        corner = drawn[4, 4]
        assert (corner > 0.9).all() if scheme == "light" else (corner < 0.2).all()
