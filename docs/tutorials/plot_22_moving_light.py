"""
A radiance cache while things move
==================================

You keep a radiance cache over ten frames in which camera and light move, and compare it with a path tracer.
"""

# %%
# A cache pays where light bounces often and time is short: in previews and animations. From one frame to the next, most
# of the light in a room stays the same. So a cache need not be learned anew. A few more steps after each change are
# enough, and their kernels are recorded once.

import time

import matplotlib.pyplot as plt
import mitsuba as mi
import numpy as np

import coopnet as cn

mi.set_variant(f"{cn.backend.require('auto')}_ad_rgb")
SIDE, FRAMES, STEPS = 96, 10, 16

# %%
# A lamp below the ceiling
# ------------------------
#
# Mitsuba's Cornell box with a small, bright lamp that shines on the ceiling only, so all other things are lit by light
# that has bounced before. The lamp travels from left to right, and the camera a little to the right.

described = mi.cornell_box()
described["sensor"]["film"] |= {"width": SIDE, "height": SIDE, "rfilter": {"type": "box"}}
up = mi.ScalarTransform4f().translate([0, 0.75, 0]).rotate([1, 0, 0], -90).scale(0.1)
described["light"] |= {"to_world": up}
described["light"]["emitter"]["radiance"] = {"type": "rgb", "value": [150, 120, 75]}
metal = {"type": "roughconductor", "material": "Al", "alpha": 0.2}
described["large-box"]["bsdf"] = metal
scene = mi.load_dict(described)
params = mi.traverse(scene)
lamp, view = (mi.Transform4f(params[f"{name}.to_world"]) for name in ("light", "sensor"))


def to(frame):
    """Move lamp and camera to their positions in a frame."""
    part = frame / (FRAMES - 1)
    params["light.to_world"] = mi.Transform4f().translate([0.7 * part - 0.35, 0, 0]) @ lamp
    params["sensor.to_world"] = mi.Transform4f().translate([0.1 * part, 0, 0]) @ view
    params.update()


# %%
# Ten frames
# ----------
#
# The cache first learns the room as it is at the start, for 250 steps. Then each frame has sixteen training steps and
# a picture of the cache alone (``vertices=0``), whose only noise comes from sample positions within a pixel.
# ``average=0.9`` lets the average of the weights adapt faster than by default. The path tracer gets as many passes of
# four samples as fit into the processor time of steps and picture. Three warm-up frames, which compile the kernels, are
# excluded.

cache = cn.mitsuba.RadianceCache(scene, average=0.9)
path = mi.load_dict({"type": "path", "max_depth": 64})
alone = cache.integrator(vertices=0)


def timed(work):
    start = time.process_time()
    made = work()
    return made, time.process_time() - start


def render(integrator, spp, seed):
    return mi.render(scene, integrator=integrator, spp=spp, seed=seed).numpy()


def frame_of(cache, seed):
    cache.train(STEPS, samples=1 << 12)
    return render(alone, 8, seed)


def relmse(picture, truth):
    return float(np.mean((picture - truth) ** 2 / (truth**2 + 1e-2)))


for frame in range(3):
    to(frame)
    frame_of(cache, 0)
    render(path, 4, 0)
cache.reset()
to(0)
_, seconds = timed(lambda: cache.train(250, samples=1 << 12))
print(f"250 steps before the first frame: {seconds:.1f} s of processor time")

errors, shown = [], {}
for frame in range(FRAMES):
    to(frame)
    cached, seconds = timed(lambda seed=frame: frame_of(cache, seed))
    total, theirs, passes = 0, 0.0, 0
    while theirs < seconds or not passes:
        more, spent = timed(lambda seed=1000 * frame + passes: render(path, 4, seed))
        total, theirs, passes = total + more, theirs + spent, passes + 1
    truth = render(path, 384, 10**6 + frame)
    errors.append((relmse(cached, truth), relmse(total / passes, truth)))
    if frame in (0, FRAMES // 2, FRAMES - 1):
        shown[frame] = {"cache": cached, f"path, {4 * passes} samples": total / passes}
        shown[frame] |= {"384 samples": truth}
ours, peers = np.array(errors).T
print("frame  cache  path")
for frame, row in enumerate(errors):
    print(f"{frame:5}  {row[0]:.3f}  {row[1]:.3f}")
late = slice(FRAMES // 3, None)
print(
    f"from frame {FRAMES // 3}: error of path "
    f"{peers[late].mean() / ours[late].mean():.1f} times the cache's"
)

figure, axes = plt.subplots(3, 3, figsize=(8, 8.4), layout="constrained")
for row, (frame, pictures) in zip(axes, shown.items(), strict=True):
    for axis, (name, picture) in zip(row, pictures.items(), strict=True):
        axis.imshow(np.clip(picture, 0, 1) ** (1 / 2.2))
        axis.set_title(f"frame {frame}: {name}", fontsize=10)
        axis.axis("off")
plt.show()

# %%
# With ``vertices=1`` most of the noise would be back: a path must find the bright spot on the ceiling at its one
# bounce. The cache alone shows what it knows, blurred where it knows little.

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.semilogy(ours, "o-", label="cache, kept over frames")
axis.semilogy(peers, "o-", label="path, as much time")
axis.set(xlabel="frame", ylabel="relative squared error")
axis.legend()
plt.show()

# %%
# The reference has noise of its own, which counts as error of both.
#
# .. seealso::
#
#    :doc:`/mitsuba_light` has 30 frames of a kitchen, three rooms with the training counted, the bias in rough glass,
#    and when a cache does not pay.
