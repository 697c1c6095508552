"""Textures that a material asks for several times in one call."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.machines import run

import coopnet as cn

mi = pytest.importorskip("mitsuba")

from coopnet.mitsuba.memo import Memo  # noqa: E402

pytestmark = pytest.mark.usefixtures("variant")


def textures(key=None):
    return [
        cn.mitsuba.NeuralTexture(
            cn.mitsuba.build(
                cn.NeuralField(
                    cn.Sinusoidal(2, in_features=2),
                    cn.MLP(-1, outputs, 8, 1, output_activation="sigmoid", dropout=0.3),
                ),
                seed=seed,
            ),
            key=key,
        )
        for seed, outputs in ((1, 3), (2, 1), (3, 1))
    ]


def scene(made):
    names = "base_color", "roughness", "metallic"
    return mi.load_dict({
        "type": "scene", "light": {"type": "constant"},
        "ball": {"type": "sphere", "bsdf": {"type": "principled", **dict(zip(names, made, strict=True))}},
        "integrator": {"type": "path", "max_depth": 3},
        "sensor": {"type": "perspective", "fov": 35, "film": {"type": "hdrfilm", "width": 8, "height": 8},
                   "to_world": mi.ScalarTransform4f().look_at(origin=[0, 0, 4], target=[0, 0, 0], up=[0, 1, 0])},
    })  # fmt: skip


def rendered(made, on=True):
    with dr.scoped_set_flag(dr.JitFlag.SymbolicCalls, on), dr.scoped_set_flag(dr.JitFlag.SymbolicLoops, on):
        return mi.render(made, spp=4, seed=1).numpy()


@pytest.fixture
def evaluations(monkeypatch):
    """The fields that are evaluated. Dr.Jit traces calls for all objects that exist, also those of other tests."""
    seen, call = [], cn.NeuralField.__call__

    def counted(self, *args, **kwargs):
        seen.append(self)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(cn.NeuralField, "__call__", counted)
    return seen


def test_one_evaluation_for_each_call(evaluations):
    """Mitsuba traces two calls of the material, in which it asks 24 times."""
    made = textures()
    world = scene(made)
    evaluations.clear()
    symbolic = rendered(world)
    assert [sum(f is t.field for f in evaluations) for t in made] == [2, 2, 2]
    tolerance = 1e-6 if mi.variant().startswith("llvm") else 2e-2
    np.testing.assert_allclose(symbolic, rendered(world, on=False), rtol=tolerance, atol=tolerance)


def test_materials_within_others(evaluations):
    """All callees of a call, of which a nested material is one, have the same arguments, but not the same variables."""
    texture = textures()[0]
    square = {"type": "rectangle", "bsdf": {"type": "twosided", "bsdf": {"type": "diffuse", "reflectance": texture}}}
    for integrator in ("direct", "path"):
        world = mi.load_dict({
            "type": "scene", "light": {"type": "constant"}, "square": square, "integrator": {"type": integrator},
            "sensor": {"type": "perspective", "fov": 30, "film": {"type": "hdrfilm", "width": 8, "height": 8},
                       "to_world": mi.ScalarTransform4f().look_at([0, 0, 3], [0, 0, 0], [0, 1, 0])},
        })  # fmt: skip
        evaluations.clear()
        symbolic = rendered(world)
        assert sum(f is texture.field for f in evaluations) == 4  # two calls, two materials
        tolerance = 1e-6 if mi.variant().startswith("llvm") else 2e-2
        np.testing.assert_allclose(symbolic, rendered(world, on=False), rtol=tolerance, atol=tolerance)
        assert symbolic.min() > 0.01


def test_what_changes_between_pictures():
    """New parameters and keys are seen."""
    made = textures(cn.Key(1, index=0))
    world, pictures = scene(made), []
    pictures.append(rendered(world))
    for texture in made:
        texture.key = cn.Key(2, index=0)
    pictures.append(rendered(world))
    made[0].field.set_matrix("network.layers.0.weights", 0.5 * made[0].field.matrix("network.layers.0.weights"))
    pictures.append(rendered(world))
    assert np.abs(pictures[0] - pictures[1]).max() > 1e-3 and np.abs(pictures[1] - pictures[2]).max() > 1e-3
    np.testing.assert_allclose(rendered(world), pictures[2], rtol=1e-5)


def test_scopes():
    """Values from within a conditional do not exist outside of it, and those of one callee not in another."""
    memo, calls, traced = Memo(), [], []

    def twice(x):
        def function(active):
            calls.append(active)
            return [dr.select(active, 2 * x, 0)]

        return memo(function, x > 0, [x])[0]

    def body(i, x, total):
        traced.append(1)
        inside = dr.if_stmt((x,), i > 1, lambda x: twice(x) + twice(x), lambda x: x * 0, mode="symbolic")
        called = dr.switch(mi.UInt32(i) % 2, [twice, lambda x: twice(x) + twice(x)], x)
        return i + 1, x, total + inside + twice(x) + twice(x) + called

    x = mi.Float(-1, 1, 3)
    _, _, total = dr.while_loop((mi.UInt32(0), x, mi.Float(0, 0, 0)), lambda i, *_: i < 3, body, mode="symbolic")
    np.testing.assert_array_equal(total.numpy(), [0, 2 * 2 * 3 + 4 + 8, 6 * 2 * 3 + 12 + 24])
    assert len(calls) == 4 * len(traced)  # of seven


def test_values_with_gradients_are_not_kept():
    memo, calls, traced = Memo(), [], []
    x = mi.Float(1, 2)
    dr.enable_grad(x)

    def body(i, y):
        traced.append(1)
        for _ in range(2):
            y = y + memo(lambda active: calls.append(1) or [x * x], True, [x])[0]
        return i + 1, y

    _, y = dr.while_loop((mi.UInt32(0), mi.Float(0, 0)), lambda i, y: i < 2, body, max_iterations=2, mode="symbolic")
    dr.backward(y)
    np.testing.assert_allclose(x.grad.numpy(), [8, 16])
    assert traced and len(calls) == 2 * len(traced)


LEAVES = """
import mitsuba as mi
mi.set_variant({variant!r})
import importlib, sys
sys.path.insert(0, {here!r})
t = importlib.import_module("test_memo")
world = t.scene(t.textures())
t.rendered(world)
print("rendered")
"""


def test_nothing_is_left_at_the_end():
    from pathlib import Path

    done = run(LEAVES.format(variant=mi.variant(), here=str(Path(__file__).parent)))
    assert "rendered" in done.stdout and "leak" not in done.stderr
