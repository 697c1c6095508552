"""Cameras of photos, from the files that programs write which find them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_positive, check_type, ensure, shown
from ..checks.messages import shown_path
from ..io.files import file_name, regular
from .cameras import Cameras, numbers

#: Numbers of a lens's distortion; cameras of photos without it have none of them, or zeros.
DISTORTION = ("k1", "k2", "k3", "k4", "p1", "p2")
#: Models of cameras whose rays are those of a pinhole if there is no distortion.
MODELS = ("PINHOLE", "SIMPLE_PINHOLE", "OPENCV", "RADIAL", "SIMPLE_RADIAL", "FULL_OPENCV")


def load_cameras(
    path: str | PathLike[str], size: tuple[int, int] | None = None, backend: str = "auto"
) -> tuple[Cameras, list[Path]]:
    """The cameras of a ``transforms.json``, and the files of their photos.

    Such files are part of NeRF's synthetic scenes, and are written by ``ns-process-data`` of nerfstudio (from photos,
    by COLMAP, videos, and recordings of several apps), and by Instant NGP. What is read: ``frames`` with
    ``transform_matrix`` and ``file_path``; ``w``, ``h``, ``fl_x``, ``fl_y``, ``cx``, ``cy``, ``camera_angle_x``, of all
    frames or of each.

    Args:
        path: the file.
        size: width and height at which the photos are used, in pixels; that of the file if it is not given. NeRF's own
            files have none.
        backend: ``"llvm"``, ``"cuda"`` or ``"auto"``.

    Returns:
        A pair: :class:`Cameras`, and the paths of the photos, relative to the folder of the file, in the same order. A
        name without an ending gets ``.png``, as NeRF's names need.

    Raises:
        ValueError, TypeError: it is not such a file; its photos have several sizes, or a distortion, which programs
            remove (COLMAP's ``image_undistorter``).
        OSError: there is no such file, or it cannot be read.

    >>> cameras, photos = cn.render.load_cameras("transforms.json")
    """
    name = file_name(path, "load_cameras")
    regular(name, "load_cameras")
    where, path = f"load_cameras: {shown_path(name)}", Path(name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}.") from None
    found = data.get("frames") if isinstance(data, Mapping) else None
    frames = [frame for frame in found if isinstance(frame, Mapping)] if isinstance(found, list) else []
    ensure(frames and frames == found, f"{where} has no list of frames; a transforms.json is needed.")
    frames = [{**data, **frame} for frame in frames]
    poses, lenses, photos = [], [], []
    sizes = {_size(where, f, size) for f in frames}
    ensure(
        len(sizes) == 1, f"{where} has photos of several sizes, {shown(sorted(sizes))}; load them one size at a time."
    )
    width, height = sizes.pop()
    for i, frame in enumerate(frames):
        name = f"{where}: frame {i}"
        for k in ("transform_matrix", "file_path"):
            ensure(k in frame, f"{name} has no {k}.")
        model = frame.get("camera_model", MODELS[0])
        ensure(model in MODELS, f"{name} is of the model {shown(model)}; {', '.join(MODELS)} are possible.")
        bent = [k for k in DISTORTION if _number(name, frame, k, 0.0)]
        ensure(not bent, f"{name} has a distortion ({', '.join(bent)}); remove it from the photos first.")
        pose = numbers(name, "transform_matrix", frame["transform_matrix"])
        ensure(
            pose.shape in ((3, 4), (4, 4)), f"{name}: transform_matrix has the shape {pose.shape}; (4, 4) is needed."
        )
        poses.append(pose[:3])
        lenses.append(_lens(name, frame, width, height))
        check_type(name, "file_path", frame["file_path"], str, "a name")
        photo = path.parent / frame["file_path"]
        photos.append(photo if photo.suffix else photo.with_suffix(".png"))
    lens = np.array(lenses)
    cameras = Cameras(np.stack(poses), width, height, focal=lens[:, :2], center=lens[:, 2:], backend=backend)
    return cameras, photos


def _number(where: str, frame: Mapping, name: str, default: float | None = None) -> Any:
    value = frame.get(name, default)
    valid = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value))
    ensure(valid, f"{where}: {name} is {shown(value)}; a finite number is needed.")
    return value


def _size(where: str, frame: Mapping, size: Any) -> tuple[int, int]:
    if size is None:
        size = _number(where, frame, "w"), _number(where, frame, "h")
        ensure(None not in size, f"{where} does not say how large its photos are; pass size=(width, height) of one.")
        size = tuple(int(v) if v == int(v) else v for v in size)
    ensure(isinstance(size, (tuple, list)) and len(size) == 2, f"{where}: size is {shown(size)}; two ints are needed.")
    return check_positive(where, "width", size[0]), check_positive(where, "height", size[1])


def _lens(where: str, frame: Mapping, width: int, height: int) -> list[float]:
    """Focal lengths and center for photos of this size, in pixels."""
    across, down = (_number(where, frame, k, v) for k, v in (("w", width), ("h", height)))
    focal, angle = _number(where, frame, "fl_x"), _number(where, frame, "camera_angle_x")
    ensure(focal or angle, f"{where} has neither fl_x nor camera_angle_x.")
    ensure(across > 0 and down > 0, f"{where}: w and h are {shown((across, down))}; positive numbers are needed.")
    focal_x = focal or across / 2 / np.tan(angle / 2)
    focal_y = _number(where, frame, "fl_y") or focal_x
    x, y = _number(where, frame, "cx", across / 2), _number(where, frame, "cy", down / 2)
    return [focal_x * width / across, focal_y * height / down, x * width / across, y * height / down]
