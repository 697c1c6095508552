"""
A measured material, and a page that shows it
=============================================

You learn a file of measured reflection, see where its samples go, and export it as a web page and as NumPy.
"""

# %%
# A goniophotometer measures how much light a material reflects, for many pairs of directions. The MERL database has
# such files, 35 MB each (Matusik et al. 2003). A network holds the same in a few kilobytes, is smooth between the
# measurements, and can be sampled and exported.

import runpy
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
cn.mitsuba.register()  # neural_path
folder = Path(tempfile.mkdtemp())

# %%
# A file
# ------
#
# The database may not be copied here, so this page writes a file of its own: a blue paint with a rough varnish, one of
# Mitsuba's materials. Bins count the angle of the half vector from the normal (narrow bins at the highlight), and the
# two angles of the difference vector. If you have a file of the database, take it instead.


def rotated(x, z, angle):
    return np.cos(angle) * x + np.sin(angle) * z, np.cos(angle) * z - np.sin(angle) * x


SHAPE = (90, 90, 180)
half, difference, azimuth = (
    ((i + 0.5) / n).ravel() for i, n in zip(np.indices(SHAPE), SHAPE, strict=True)
)
half, difference, azimuth = half**2 * np.pi / 2, difference * np.pi / 2, azimuth * np.pi
x, y = np.sin(difference) * np.cos(azimuth), np.sin(difference) * np.sin(azimuth)
x, z = rotated(x, np.cos(difference), half)
h = np.stack([np.sin(half), 0 * half, np.cos(half)])
wi = np.stack([x, y, z])
wo = 2 * np.sum(wi * h, axis=0) * h - wi


def evaluate(bsdf, wi, wo):
    """The BSDF times the cosine, ``(3, pairs)``."""
    si = mi.SurfaceInteraction3f()
    si.wi, to = (mi.Vector3f(w.astype(np.float32)) for w in (wi, wo))
    return bsdf.eval(mi.BSDFContext(), si, to).numpy()


paint = {
    "type": "roughplastic", "distribution": "ggx", "alpha": 0.15,
    "diffuse_reflectance": {"type": "rgb", "value": [0.02, 0.08, 0.3]},
}  # fmt: skip
values = evaluate(mi.load_dict(paint), wi, wo) / np.maximum(wo[2], 1e-6)
values = np.where((wi[2] > 0) & (wo[2] > 0), values, -1)  # below the surface: not measured
scales = np.array([[1.0], [1.15], [1.66]]) / 1500
with open(folder / "paint.binary", "wb") as file:
    np.array(SHAPE, "<i4").tofile(file)
    (values / scales).astype("<f8").tofile(file)
print(f"{(folder / 'paint.binary').stat().st_size / 1e6:.0f} MB")

# %%
# Learning it
# -----------
#
# ``cn.mitsuba.MERL`` is a BSDF of Mitsuba, and so a reference for ``fit_bsdf`` like any other. (For files of the RGL
# database, write ``cn.mitsuba.rgl``.)

measured = cn.mitsuba.MERL(folder / "paint.binary")
found = cn.mitsuba.fit_bsdf(None, measured, steps=800, samples=1 << 13)
print(found)
found.bsdf.save(folder / "paint.safetensors")
print(f"{(folder / 'paint.safetensors').stat().st_size / 1e3:.0f} kB")


def ball(bsdf, kind, spp):
    at = mi.ScalarTransform4f
    view = at().look_at(origin=[0, -5, 1.5], target=[0, 0, 0], up=[0, 0, 1])
    lamp = at().look_at(origin=[3, -3, 4], target=[0, 0, 0], up=[0, 1, 0]).scale(0.5)
    film = {"type": "hdrfilm", "width": 160, "height": 160, "rfilter": {"type": "box"}}
    scene = mi.load_dict({
        "type": "scene", "ball": {"type": "sphere", "bsdf": bsdf},
        "sky": {"type": "constant", "radiance": 0.12},
        "lamp": {
            "type": "rectangle", "to_world": lamp,
            "emitter": {"type": "area", "radiance": 60.0},
        },
        "sensor": {"type": "perspective", "fov": 26, "to_world": view, "film": film},
    })  # fmt: skip
    integrator = mi.load_dict({"type": kind, "max_depth": 3})
    return mi.render(scene, integrator=integrator, spp=spp, seed=1).numpy()


pictures = {
    "the paint": ball(mi.load_dict(paint), "path", 128),
    "its file": ball(measured, "path", 128),
    "learned": ball(found.bsdf, "neural_path", 128),
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
    axis.imshow(np.clip(picture, 0, 1) ** (1 / 2.2))
    axis.set_title(name, fontsize=10)
    axis.axis("off")
plt.show()

# %%
# Where its samples go
# --------------------
#
# A second, small network gives the lobes that directions are sampled from: widths, azimuths and weights, for the
# direction of incidence. The lobes never change the mean of a picture. The closer their density is to the reflection,
# the less noise there is. The plots show both in the plane of incidence, each divided by its integral over the
# hemisphere.

theta = np.linspace(-np.pi / 2, np.pi / 2, 721)[1:-1]
wo = np.stack([np.sin(theta), 0 * theta, np.cos(theta)])
figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
for axis, degrees in zip(axes, (10, 45, 75), strict=True):
    angle = np.radians(degrees)
    wi = np.array([[-np.sin(angle)], [0], [np.cos(angle)]]) + 0 * wo
    si = mi.SurfaceInteraction3f()
    si.wi, to = mi.Vector3f(wi.astype(np.float32)), mi.Vector3f(wo.astype(np.float32))
    sampler = mi.load_dict({"type": "independent"})
    sampler.seed(0, 1 << 14)
    first = mi.SurfaceInteraction3f()
    first.wi = mi.Vector3f(*map(float, wi[:, 0]))
    _, weights = found.bsdf.sample(
        mi.BSDFContext(), first, sampler.next_1d(), sampler.next_2d()
    )
    albedo = mi.luminance(weights).numpy().mean()
    light = mi.luminance(found.bsdf.eval(mi.BSDFContext(), si, to)).numpy() / albedo
    axis.plot(np.degrees(theta), light, lw=3, alpha=0.4, label="reflection")
    axis.plot(
        np.degrees(theta), found.bsdf.pdf(mi.BSDFContext(), si, to).numpy(), label="density"
    )
    axis.set(
        title=f"light from {degrees} degrees",
        xlabel="outgoing angle",
        yscale="log",
        ylim=(1e-2, 30),
    )
axes[0].legend()
plt.show()
print(
    f"noise of samples: {found.spread:.2f}; "
    f"of the file's own lobe: {found.reference_spread:.2f}"
)

# %%
# A page, a shader, a function
# ----------------------------
#
# ``cn.export`` writes the material as a stand-alone web page with a light to move, as GLSL, WGSL, Slang or C, or as
# NumPy. All of them take (u, v) and both directions, and return the BSDF times the cosine.

view = cn.interop.export.View("Paint", light=(80, 40), intensity=30)
page = cn.export(found.bsdf, "html", folder / "paint.html", view=view)
cn.export(found.bsdf, "glsl", folder / "paint.glsl", name="paint")
cn.export(found.bsdf, "numpy", folder / "paint.py", name="paint")
for name in ("paint.html", "paint.glsl", "paint.py"):
    print(f"{name}: {(folder / name).stat().st_size / 1e3:.0f} kB")

# %%
# The NumPy file imports NumPy alone. A few lines draw a ball under a point light with it: intersect the ball, transform
# the directions to the shading frame, and call the function once. Beside it are the same pixels with Mitsuba's
# evaluation of the material.

module = runpy.run_path(str(folder / "paint.py"))
weights = module["paint_load"](folder / "paint.py.weights")
side, lamp = 200, np.array([[2.0], [-3.0], [3.0]])
x, z = np.meshgrid(
    (np.arange(side) + 0.5) / side * 2.2 - 1.1, 1.1 - (np.arange(side) + 0.5) / side * 2.2
)
hit = x**2 + z**2 < 0.999
n = np.stack([x[hit], -np.sqrt(1 - x[hit] ** 2 - z[hit] ** 2), z[hit]])  # seen along y
u = np.stack([-n[1], n[0], 0 * n[0]]) / np.hypot(n[0], n[1])
frame = u, np.cross(n, u, axis=0), n
to = lamp - n
distance = np.linalg.norm(to, axis=0)
wi, wo = (
    np.stack([np.sum(v * axis, axis=0) for axis in frame])
    for v in (np.array([[0.0], [-1.0], [0.0]]) + 0 * n, to / distance)
)
drawn = {
    "NumPy": module["paint"](weights, np.concatenate([0 * wi[:2], wi, wo]).astype(np.float32)),
    "Mitsuba": evaluate(found.bsdf, wi, wo),
}
figure, axes = plt.subplots(1, 2, figsize=(7, 3.6), layout="constrained")
for axis, (name, value) in zip(axes, drawn.items(), strict=True):
    picture = np.ones((side, side, 3))
    drawn[name] = picture[hit] = np.clip(50 * value / distance**2, 0, 1).T ** (1 / 2.2)
    axis.imshow(picture)
    axis.set_title(name, fontsize=10)
    axis.axis("off")
plt.show()
print(f"largest difference: {255 * np.abs(drawn['NumPy'] - drawn['Mitsuba']).max():.2f}/255")

# %%
# .. seealso::
#
#    :doc:`/export_gallery` has pages of materials, and says how they are drawn;
#    :doc:`/export` has the arguments of the exported functions;
#    :doc:`/mitsuba` says which materials can be learned, and how well they are sampled.
