"""Rays through pixels: against the reference, Mitsuba's cameras and finite differences; files of photos' cameras."""

import json

import drjit as dr
import numpy as np
import pytest
from support.arrays import all_close

import coopnet as cn
from coopnet import reference as ref

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies


def poses(count, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([cn.render.look_at(rng.normal(0, 2, 3), rng.normal(0, 0.3, 3)) for _ in range(count)])


@hypothesis.given(
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans(), st.booleans()
)
def test_rays_are_those_of_the_reference(ns, backend, count, width, height, seed, by_focal, inside):
    rng = np.random.default_rng(seed)
    to_world, center = poses(count, seed), rng.uniform(0, 10, (count, 2))
    focal = rng.uniform(2, 30, (count, 2))
    lens = {"focal": focal} if by_focal else {"fov": np.degrees(2 * np.arctan(width / 2 / focal[:, 0]))}
    if not by_focal:
        focal[:, 1] = focal[:, 0]
    cameras = cn.render.Cameras(to_world, width, height, center=center, backend=backend, **lens)
    assert len(cameras) == count and cameras.pixels == count * width * height
    pixels = rng.integers(0, cameras.pixels, 50).astype(np.uint32)
    place = rng.uniform(0, 1, (2, 50)).astype(np.float32) if inside else np.full((2, 50), 0.5)
    o, d = cameras.rays(ns.UInt32(pixels), [ns.Float(p) for p in place] if inside else 0.5)
    lenses = np.concatenate([focal, center], axis=1)
    for found, expected in zip((o, d), ref.camera_rays(to_world, lenses, width, height, pixels, place), strict=True):
        all_close(found.numpy(), expected, 1e-5)


def test_pixels_of_a_picture(ns, backend):
    cameras = cn.render.Cameras(poses(3), 5, 4, 40, backend=backend)
    assert cameras.picture(1).numpy().tolist() == list(range(20, 40))
    assert cameras.picture(-1).numpy().tolist() == list(range(40, 60))
    every = [v.numpy() for v in cameras.rays()]
    for i in range(3):
        for found, all_of_them in zip(cameras.rays(cameras.picture(i)), every, strict=True):
            np.testing.assert_array_equal(found.numpy(), all_of_them[:, 20 * i : 20 * i + 20])
    # numbers of no pixel
    last = cameras.rays(ns.UInt32(2**32 - 1, 60, 59))[1].numpy()
    assert (last == last[:, :1]).all() and (last[:, 0] == every[1][:, 59]).all()


@hypothesis.given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(1, 70_000))
def test_drawn_pixels_follow_the_law(ns, backend, seed, step, width):
    cameras = cn.render.Cameras(np.eye(4), width, 60_000, 40, backend=backend)
    expected = ref.integers(cameras.pixels, 100, seed, step, stream=2**31 - 3)
    drawn = cameras.draw(cn.Key(seed, step=step), 100).numpy()
    np.testing.assert_array_equal(drawn, expected)
    index = ns.UInt32(7, 99)
    np.testing.assert_array_equal(cameras.draw(cn.Key(seed, index, step)).numpy(), expected[[7, 99]])


def test_every_pixel_can_be_drawn(ns, backend):
    """More than 2^24 pixels: numbers in single precision would leave out half of them."""
    cameras = cn.render.Cameras(np.eye(4), 1 << 13, 1 << 12, 40, backend=backend)
    drawn = cameras.draw(cn.Key(0), 1000).numpy()
    assert 0.4 < (drawn % 2).mean() < 0.6
    assert abs(drawn.mean() / cameras.pixels - 0.5) < 0.05


def test_gradients_of_poses_and_lenses(ns, backend):
    cameras = cn.render.Cameras(poses(2), 6, 5, 50, backend=backend)
    rng = np.random.default_rng(0)
    to_o, to_d = rng.normal(size=(2, 3, 60))
    dr.enable_grad(cameras)
    o, d = cameras.rays()
    dr.backward(dr.sum(o * ns.Array3f(to_o) + d * ns.Array3f(to_d), axis=None))

    def loss(to_world, lens):
        o, d = ref.camera_rays(to_world, lens, 6, 5, np.arange(60))
        return (o * to_o + d * to_d).sum()

    given = [cameras.to_world.numpy().astype(np.float64), cameras.lens.numpy().astype(np.float64)]
    for k, found in enumerate((dr.grad(cameras.to_world).numpy(), dr.grad(cameras.lens).numpy())):
        expected = np.empty_like(given[k])
        for i in np.ndindex(expected.shape):
            ends = []
            for sign in (1, -1):
                moved = [v.copy() for v in given]
                moved[k][i] += sign * 1e-5
                ends.append(loss(*moved))
            expected[i] = (ends[0] - ends[1]) / 2e-5
        all_close(found, expected, 1e-4)


def test_one_kernel_for_all_cameras(ns, backend):
    """Poses and lenses are in memory, and cameras are inputs of frozen functions."""
    recorded = dr.freeze(lambda cameras, pixels: cameras.rays(pixels))
    for seed in range(3):
        cameras = cn.render.Cameras(poses(2, seed), 6, 5, 30 + seed, backend=backend)
        pixels = cameras.draw(cn.Key(seed), 40)
        dr.eval(pixels)
        for found, expected in zip(recorded(cameras, pixels), cameras.rays(pixels), strict=True):
            all_close(found.numpy(), expected.numpy(), 1e-6)
    assert recorded.n_recordings == 1


def test_poses_that_look_at_points():
    pose = cn.render.look_at((1, 2, 3), (1, 2, -5), up=(0, 2, 0))
    np.testing.assert_allclose(pose, [[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3]], atol=1e-15)
    for pose in poses(20):
        np.testing.assert_allclose(pose[:, :3] @ pose[:, :3].T, np.eye(3), atol=1e-12)
        assert np.linalg.det(pose[:, :3]) == pytest.approx(1) and pose[2, 1] > 0 and abs(pose[2, 0]) < 1e-12
    for arguments, words in {
        ((0, 0, 0), (0, 0, 0)): "origin and target are the same point",
        ((0, 0, 1), (0, 0, 0)): "points along the view",
        ((0, 1, 0), (0, 0, 0), (0, 0, 0)): "is zero or points along the view",
        ((0, 1), (0, 0, 0)): r"origin has the shape \(2,\); three numbers",
        ((0, np.nan, 0), (0, 0, 0)): "origin has numbers that are not finite",
    }.items():
        with pytest.raises(ValueError, match=words):
            cn.render.look_at(*arguments)
    with pytest.raises(TypeError, match="target is 'x'; an array of numbers"):
        cn.render.look_at((0, 0, 1), "x")


def test_what_cameras_refuse(ns, backend):
    one = {"to_world": np.eye(4), "width": 4, "height": 3, "fov": 40}
    singular = np.eye(4)
    singular[0, 0] = 0
    for change, error, words in (
        ({"to_world": np.eye(3)}, ValueError, r"to_world has the shape \(3, 3\)"),
        ({"to_world": "x"}, TypeError, "to_world is 'x'; an array of numbers"),
        ({"to_world": np.empty((0, 4, 4))}, ValueError, "to_world has the shape"),
        ({"to_world": np.full((4, 4), np.nan)}, ValueError, "not finite"),
        ({"to_world": singular}, ValueError, r"to_world\[0\] is singular"),
        ({"width": 0}, ValueError, "width is 0"),
        ({"width": 1 << 20, "height": 1 << 20}, ValueError, "fewer than 2"),
        ({"fov": None}, ValueError, "fov or focal is needed"),
        ({"focal": 3}, ValueError, "give fov or focal"),
        ({"fov": 180}, ValueError, "above 0 and below 180"),
        ({"fov": [40, 50]}, ValueError, "a number, or one for each of 1 pictures"),
        ({"fov": None, "focal": -1}, ValueError, "above 0"),
        ({"center": (1, 2, 3)}, ValueError, "center is .*two for each of 1 pictures"),
        ({"backend": "metal"}, ValueError, "backend"),
    ):
        with pytest.raises(error, match=words):
            cn.render.Cameras(**one | {"backend": backend} | change)
    cameras = cn.render.Cameras(**one, backend=backend)
    for call, error, words in (
        (lambda: cameras.picture(1), ValueError, "i is 1; an int below 1"),
        (lambda: cameras.draw(3, 4), TypeError, "key"),
        (lambda: cameras.draw(cn.Key(0)), ValueError, "samples"),
        (lambda: cameras.rays(3), TypeError, "pixels is"),
        (lambda: cameras.rays(ns.Float(3)), TypeError, "pixels is"),
        (lambda: cameras.rays(place=(1, 2, 3)), ValueError, "place has 3 parts"),
        (lambda: cameras.rays(place=[ns.Float(1, 2), 0.5]), ValueError, "place"),
        (lambda: cameras.rays(place="x"), (ValueError, TypeError), "place"),
    ):
        with pytest.raises(error, match=words):
            call()


def transforms(**changes):
    frames = [{"file_path": f"./train/r_{i}", "transform_matrix": p.tolist()} for i, p in enumerate(poses(3))]
    return {"camera_angle_x": 0.7, "frames": frames} | changes


def test_files_of_cameras(tmp_path, backend):
    path = tmp_path / "transforms.json"
    path.write_text(json.dumps(transforms()))
    cameras, photos = cn.render.load_cameras(path, (8, 6), backend)
    assert photos == [tmp_path / f"train/r_{i}.png" for i in range(3)]
    focal = 4 / np.tan(0.35)
    all_close(cameras.lens.numpy(), [[focal, focal, 4, 3]] * 3, 1e-6)
    all_close(cameras.to_world.numpy(), poses(3), 1e-6)

    data = transforms(w=80, h=60, fl_x=50, fl_y=51, cx=41, cy=29, k1=0, camera_model="OPENCV")
    data["frames"][1] |= {"fl_x": 70, "file_path": "a b.JPG"}
    path.write_text(json.dumps(data))
    cameras, photos = cn.render.load_cameras(str(path), backend=backend)
    assert (cameras.width, cameras.height, photos[1]) == (80, 60, tmp_path / "a b.JPG")
    all_close(cameras.lens.numpy(), [[50, 51, 41, 29], [70, 51, 41, 29], [50, 51, 41, 29]], 1e-6)
    half, _ = cn.render.load_cameras(path, (40, 30), backend)
    all_close(half.lens.numpy(), cameras.lens.numpy() / 2, 1e-6)


def test_files_that_are_refused(tmp_path, backend):
    path = tmp_path / "transforms.json"
    with pytest.raises(FileNotFoundError):
        cn.render.load_cameras(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        cn.render.load_cameras(path)
    pose = np.eye(4).tolist()
    several = [{"file_path": "a", "transform_matrix": pose, "w": w, "h": 4} for w in (4, 8)]
    for changes, words in (
        ({"frames": []}, "no list of frames"),
        ({"frames": [3]}, "no list of frames"),
        ({}, r"pass size=\(width, height\)"),
        ({"w": 8.5, "h": 6}, "width is 8.5"),
        ({"w": 8, "h": 6, "k1": 0.1, "p2": 0.1}, r"frame 0 has a distortion \(k1, p2\)"),
        ({"w": 8, "h": 6, "camera_model": "OPENCV_FISHEYE"}, "is of the model 'OPENCV_FISHEYE'"),
        ({"w": 8, "h": 6, "camera_angle_x": None}, "neither fl_x nor camera_angle_x"),
        ({"w": 8, "h": 6, "cx": "middle"}, "cx is 'middle'"),
        ({"w": 8, "h": 6, "frames": [{"file_path": "a"}]}, "frame 0 has no transform_matrix"),
        ({"w": 8, "h": 6, "frames": [{"transform_matrix": pose}]}, "frame 0 has no file_path"),
        ({"w": 8, "h": 6, "frames": [{"file_path": "a", "transform_matrix": [1, 2]}]}, r"shape \(2,\); \(4, 4\) is"),
        (
            {"w": 8, "h": 6, "frames": [{"file_path": "a", "transform_matrix": [[1], [2, 3]]}]},
            "matrix is .*an array of numbers",
        ),
        ({"frames": several}, r"several sizes, \[\(4, 4\), \(8, 4\)\]"),
    ):
        path.write_text(json.dumps(transforms(**changes)))
        with pytest.raises((ValueError, TypeError), match=words):
            cn.render.load_cameras(path, backend=backend)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not JSON"):
        cn.render.load_cameras(path)
    with pytest.raises(TypeError, match="path is a int"):
        cn.render.load_cameras(3)


def test_rays_are_those_of_mitsuba(backend):
    mi = pytest.importorskip("mitsuba")
    variant = f"{backend}_ad_rgb"
    mi.set_variant(variant)
    origin, target = [2, -3, 1.5], [0.1, 0.2, 0.3]
    to_world = mi.ScalarTransform4f().look_at(origin, target, [0, 0, 1])
    film = {"type": "hdrfilm", "width": 9, "height": 6}
    sensor = mi.load_dict({"type": "perspective", "fov": 50, "to_world": to_world, "film": film})
    i = dr.arange(mi.UInt32, 54)
    place = mi.Point2f((i % 9 + 0.5) / 9, (i // 9 + 0.5) / 6)
    ray, _ = sensor.sample_ray(0, 0.5, place, mi.Point2f(0.5))
    cameras = cn.render.Cameras(cn.render.look_at(origin, target), 9, 6, 50, backend=backend)
    _, d = cameras.rays()
    all_close(d.numpy(), ray.d.numpy(), 1e-5)
