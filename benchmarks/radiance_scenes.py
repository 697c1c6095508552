"""Scenes in which a radiance cache is measured, built from Mitsuba's own shapes and materials.

``ajar`` is after Veach's: a room that is lit through a door that stands a little open. ``kitchen`` has a window on one
side, cupboards, a worktop, a hood of metal, a tiled floor and a bowl of glass. ``glossy`` is a box of shiny walls with
two shiny boxes in it. ``glass`` and its relatives are a box with one ball. All are about two units wide.
"""

from __future__ import annotations

from typing import Any

import mitsuba as mi

#: Materials of the ball in the box.
BALLS = {
    "matte": {"type": "diffuse"}, "glass": {"type": "dielectric"},
    "rough glass": {"type": "roughdielectric", "alpha": 0.1},
}  # fmt: skip
ROOMS = ("ajar", "kitchen", "glossy")


def rgb(*values: float) -> dict[str, Any]:
    return {"type": "rgb", "value": list(values * 3 if len(values) == 1 else values)}


def diffuse(*values: float) -> dict[str, Any]:
    return {"type": "twosided", "bsdf": {"type": "diffuse", "reflectance": rgb(*values)}}


def lamp(*radiance: float) -> dict[str, Any]:
    return {"type": "area", "radiance": rgb(*radiance)}


def block(low: tuple, high: tuple, bsdf: dict, turn: float = 0.0, **more: Any) -> dict[str, Any]:
    """A box with these corners, turned about the vertical through its middle by ``turn`` degrees."""
    transform, middle = mi.ScalarTransform4f, [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    half = [(b - a) / 2 for a, b in zip(low, high, strict=True)]
    placed = transform().translate(middle).rotate([0, 1, 0], turn).scale(half)
    return {"type": "cube", "to_world": placed, "bsdf": bsdf, **more}


def film(size: int) -> dict[str, Any]:
    kept = {"type": "hdrfilm", "width": size, "height": size, "pixel_format": "rgb"}
    return {**kept, "rfilter": {"type": "box"}}


def sensor(size: int, origin: list, target: list, fov: float) -> dict[str, Any]:
    view = mi.ScalarTransform4f().look_at(origin=origin, target=target, up=[0, 1, 0])
    return {"type": "perspective", "fov": fov, "to_world": view, "film": film(size)}


def shell(walls: dict[str, dict]) -> dict[str, Any]:
    """The six walls of a room from -1 to 1, a tenth thick, without those that are not named."""
    ends = {"left": (0, -1), "right": (0, 1), "floor": (1, -1), "ceiling": (1, 1), "back": (2, -1), "front": (2, 1)}
    made = {}
    for name, bsdf in walls.items():
        axis, side = ends[name]
        low, high = [-1.1] * 3, [1.1] * 3
        low[axis], high[axis] = sorted((side, 1.1 * side))
        made[name] = block(tuple(low), tuple(high), bsdf)
    return made


def tiles(bright: float, dark: float, count: int) -> dict[str, Any]:
    colors = {"color0": rgb(bright), "color1": rgb(dark)}
    return {"type": "checkerboard", **colors, "to_uv": mi.ScalarTransform4f().scale([count, count, 1])}


def ajar(size: int) -> dict[str, Any]:
    """All light comes from a lamp in a corridor behind the left wall, by the gap of a door."""
    grey, table = diffuse(0.7), {"type": "roughplastic", "alpha": 0.15, "diffuse_reflectance": rgb(0.4, 0.2, 0.1)}
    floor = {"type": "roughplastic", "alpha": 0.2, "diffuse_reflectance": tiles(0.5, 0.2, 6)}
    walls = dict(right=diffuse(0.3, 0.45, 0.6), floor=floor, ceiling=grey, back=grey, front=grey)
    metal = {"type": "roughconductor", "material": "Al", "alpha": 0.15}
    return shell(walls) | {
        # the wall with the door, which is turned out of its frame
        "beside": block((-1.1, -1, -1), (-1, 1, -0.5), grey), "beyond": block((-1.1, -1, 0.1), (-1, 1, 1), grey),
        "above": block((-1.1, 0.5, -0.5), (-1, 1, 0.1), grey),
        "door": block((-1.13, -1, -0.62), (-1.08, 0.5, -0.02), diffuse(0.5, 0.35, 0.2), 50),
        # the corridor
        "outer": block((-2.2, -1, -1.1), (-2.1, 1, 1.1), grey), "end": block((-2.2, -1, -1.1), (-1.1, 1, -1), grey),
        "start": block((-2.2, -1, 1), (-1.1, 1, 1.1), grey), "low": block((-2.2, -1.1, -1.1), (-1.1, -1, 1.1), grey),
        "high": block((-2.2, 1, -1.1), (-1.1, 1.1, 1.1), grey),
        "lamp": block((-2.0, 0.9, -0.8), (-1.3, 0.95, 0.6), grey, emitter=lamp(60.0, 52.0, 40.0)),
        # three pots on a table
        "table": block((-0.4, -0.5, -0.5), (0.5, -0.43, 0.3), table),
        "leg": block((-0.05, -1, -0.2), (0.15, -0.5, 0.0), table),
        "matte": {"type": "sphere", "center": [-0.2, -0.29, -0.2], "radius": 0.14, "bsdf": diffuse(0.6, 0.6, 0.5)},
        "metal": {"type": "sphere", "center": [0.1, -0.29, 0.1], "radius": 0.14, "bsdf": metal},
        "glass": {"type": "sphere", "center": [0.3, -0.29, -0.25], "radius": 0.14, "bsdf": BALLS["glass"]},
        "sensor": sensor(size, [0.3, 0.1, 0.95], [-0.15, -0.25, -1.0], 75),
    }  # fmt: skip


def kitchen(size: int) -> dict[str, Any]:
    """A window on the right; worktops and tiles mirror it."""
    white, wood = diffuse(0.75, 0.73, 0.68), {"type": "principled", "base_color": rgb(0.5, 0.3, 0.15), "roughness": 0.4}
    floor = {"type": "roughplastic", "alpha": 0.1, "diffuse_reflectance": tiles(0.6, 0.15, 8)}
    splash = {"type": "roughplastic", "alpha": 0.15, "diffuse_reflectance": tiles(0.5, 0.4, 12)}
    steel = {"type": "roughconductor", "material": "Cr", "alpha": 0.2}
    stone = {"type": "principled", "base_color": rgb(0.1, 0.1, 0.12), "roughness": 0.25, "specular": 0.6}
    walls = dict(left=white, floor=floor, ceiling=white, back=splash, front=diffuse(0.6, 0.5, 0.4))
    return shell(walls) | {
        # the wall with the window, and the sky in it
        "below": block((1, -1, -1), (1.1, -0.2, 1), white), "over": block((1, 0.6, -1), (1.1, 1, 1), white),
        "near": block((1, -0.2, 0.3), (1.1, 0.6, 1), white), "far": block((1, -0.2, -1), (1.1, 0.6, -0.4), white),
        "window": block((1.3, -0.4, -0.6), (1.35, 0.8, 0.5), white, emitter=lamp(9.0, 10.0, 12.0)),
        "cupboards": block((-1, -1, -1), (1, -0.45, -0.6), wood),
        "top": block((-1, -0.45, -1), (1, -0.4, -0.55), stone),
        "side": block((-1, -1, -0.6), (-0.6, -0.45, 0.3), wood),
        "worktop": block((-1, -0.45, -0.6), (-0.55, -0.4, 0.35), stone),
        "shelf": block((-1, 0.3, -1), (-0.2, 0.9, -0.7), wood),
        "hood": block((0.05, 0.3, -1), (0.65, 0.5, -0.6), steel),
        "pipe": block((0.2, 0.5, -1), (0.5, 1, -0.75), steel),
        "pot": {"type": "sphere", "center": [0.35, -0.25, -0.8], "radius": 0.15, "bsdf": steel},
        "bowl": {"type": "sphere", "center": [-0.75, -0.25, -0.1], "radius": 0.15, "bsdf": BALLS["glass"]},
        "bread": {"type": "sphere", "center": [-0.3, -0.3, -0.75], "radius": 0.1, "bsdf": diffuse(0.6, 0.4, 0.2)},
        "sensor": sensor(size, [0.5, 0.3, 0.95], [-0.25, -0.25, -1.0], 75),
    }  # fmt: skip


def cornell(size: int, **things: Any) -> dict[str, Any]:
    """Mitsuba's Cornell box with other things in it."""
    scene = {name: thing for name, thing in mi.cornell_box().items() if not name.endswith("-box")}
    scene["sensor"]["film"] = film(size)
    return scene | things


def glossy(size: int) -> dict[str, Any]:
    """Walls of varnish, a polished floor, a box of metal and a golden one."""
    scene = cornell(size)
    for name, color in {"green-wall": (0.1, 0.4, 0.1), "red-wall": (0.6, 0.1, 0.1), "back": (0.6,)}.items():
        scene[name]["bsdf"] = {"type": "roughplastic", "alpha": 0.2, "diffuse_reflectance": rgb(*color)}
    scene["floor"]["bsdf"] = {"type": "roughplastic", "alpha": 0.15, "diffuse_reflectance": tiles(0.6, 0.15, 6)}
    metal = {"type": "roughconductor", "material": "Al", "alpha": 0.15}
    gold = {"type": "principled", "base_color": rgb(0.8, 0.5, 0.1), "roughness": 0.25, "metallic": 0.8}
    boxes = {"tall": block((-0.65, -1, -0.55), (-0.05, 0.2, 0.05), metal, 20)}
    return scene | boxes | {"low": block((0.05, -1, 0.05), (0.6, -0.4, 0.6), gold, -18)}


def make(name: str, size: int) -> Any:
    """The scene ``name``, with a picture of ``size`` pixels a side."""
    if name in BALLS:
        ball = {"type": "sphere", "center": [0, -0.4, 0], "radius": 0.55, "bsdf": BALLS[name]}
        return mi.load_dict(cornell(size, ball=ball))
    return mi.load_dict({"type": "scene"} | {"ajar": ajar, "kitchen": kitchen, "glossy": glossy}[name](size))
