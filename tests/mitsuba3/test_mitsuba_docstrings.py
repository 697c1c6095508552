"""The examples in the docstrings of ``coopnet.mitsuba``: every public name has one, and all of them run."""

from __future__ import annotations

import doctest
import inspect
import struct

import drjit as dr
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")

from coopnet.mitsuba.bsdf import merl  # noqa: E402 - needs Mitsuba

PARSER = doctest.DocTestParser()
NAMES = [name for name in cn.mitsuba.__all__ if name != "lobes"]  # a module


def test_a_file_has_an_example_of_its_own(backend):
    mi.set_variant(f"{backend}_ad_rgb")
    assert PARSER.get_examples(inspect.getdoc(cn.mitsuba.NeuralBSDF.save))


@pytest.mark.parametrize("name", [*NAMES, "NeuralBSDF.save"])
def test_examples_in_docstrings_run(name, backend, tmp_path, monkeypatch):
    mi.set_variant(f"{backend}_ad_rgb")
    cn.mitsuba.register()
    monkeypatch.chdir(tmp_path)
    value = cn.mitsuba
    for part in name.split("."):
        value = getattr(value, part)
    examples = PARSER.get_examples(inspect.getdoc(value) or "")
    assert examples, f"{name} has no example"

    def built(inputs, outputs):
        return cn.mitsuba.build(cn.NeuralField(None, cn.MLP(inputs, outputs, width=8, depth=1)))

    decoder = cn.mitsuba.Decoder(built(16, 3))
    train = cn.mitsuba.fit_bsdf
    monkeypatch.setattr(cn.mitsuba, "fit_bsdf", lambda f, r, steps, **rest: train(f, r, steps=2, samples=64, **rest))
    learn = cn.mitsuba.RadianceCache.train
    monkeypatch.setattr(cn.mitsuba.RadianceCache, "train", lambda cache, steps, **rest: learn(cache, 2, **rest))
    scope = {
        "cn": cn, "mi": mi, "dr": dr, "UInt32": mi.UInt32, "decoder": decoder,
        "field": decoder.field if name == "Decoder" else built(2, 3),
        "density": built(3, 1), "cosine": built(3, 1), "volume": built(3, 4), "radiance": built(3, 3),
        "bsdf": cn.mitsuba.NeuralBSDF(decoder, [0.1] * 8),
        "reference": mi.load_dict({"type": "roughconductor"}),
        "scene": mi.load_dict(mi.cornell_box() | {"integrator": {"type": "path"}}),
    }  # fmt: skip
    if name in ("NeuralPath", "NeuralVolpath", "RadianceCache"):
        sensor = mi.cornell_box()["sensor"]
        sensor["film"] |= {"width": 8, "height": 8}
        sensor["sampler"] |= {"sample_count": 1}
        scope["scene"] = mi.load_dict(mi.cornell_box() | {"sensor": sensor})
    if name == "render_mc":
        texture = cn.mitsuba.NeuralTexture(
            cn.mitsuba.build(cn.NeuralField(None, cn.MLP(2, 3, width=8, depth=1, dropout=0.1)))
        )
        floor = mi.cornell_box()["floor"] | {"bsdf": {"type": "diffuse", "reflectance": texture}}
        sensor = mi.cornell_box()["sensor"]
        sensor["film"] |= {"width": 8, "height": 8}
        box = mi.cornell_box() | {"floor": floor, "sensor": sensor}
        scope["scene"] = mi.load_dict(box | {"integrator": {"type": "path", "max_depth": 3}})
    if name == "MERL":  # black
        with open("gold-metallic-paint.binary", "wb") as file:
            file.write(struct.pack("<3i", *merl.SHAPE))
            file.truncate(merl.SIZE)
    if name == "rgl":
        monkeypatch.setattr(cn.mitsuba, "rgl", lambda filename: scope["reference"])
    if name == "load":
        cn.save("field.safetensors", scope["field"])
    for example in examples:
        exec(compile(example.source, f"<example of {name}>", "single"), scope)
