"""Sections of a program on another backend: LLVM and CUDA, or LLVM in both roles where there is no GPU."""

import threading

import drjit as dr
import numpy as np
import pytest
from support.training import make_batch, make_field
from support.two_backends import both

import coopnet as cn
from coopnet import backend as backends
from coopnet.backend.usable import require

pytestmark = pytest.mark.skipif("llvm" not in backends.available(), reason="needs LLVM")


def test_in_and_out(place, llvm):
    seen = []

    def double(x, *, scale):
        seen.extend([place(x), place(scale)])
        return {"y": x * scale, "n": 3}

    x = llvm.Float(1, 2)
    result = cn.with_backend("cuda", double, x, scale=llvm.Float(2))
    assert seen == ["cuda", "cuda"] and place(result["y"]) == "llvm" and result["n"] == 3
    np.testing.assert_array_equal(result["y"].numpy(), [2, 4])
    host = cn.with_backend("cuda", double, np.ones(2, np.float32), scale=2)
    assert isinstance(host["y"], np.ndarray) and host["y"].tolist() == [2, 2]


def test_fields_do_not_go_to_numpy(place):
    field = cn.to(make_field("llvm"), "cuda")
    opt = dr.opt.Adam(1e-2, params=field)
    result = cn.with_backend("cuda", lambda x: (field, opt, {"x": [x]}), np.ones(2, np.float32))
    assert result[0] is field and result[1] is opt and isinstance(result[2]["x"][0], np.ndarray)


def test_what_is_there_stays(place, llvm):
    x = cn.to(llvm.Float(1, 2), "cuda")
    assert cn.with_backend("cuda", lambda v: v, x) is x
    assert cn.with_backend("cuda", lambda: x) is x
    there, here = cn.with_backend("cuda", lambda a, b: (a, b), x, llvm.Float(3))
    assert (place(there), place(here)) == ("llvm", "llvm")


def test_auto_is_that_of_the_section(place):
    before = require("auto")
    seen = []

    def inner():
        seen.append(require("auto"))

    def outer():
        seen.append(require("auto"))
        cn.with_backend("llvm", inner)
        seen.append(require("auto"))
        raise KeyError("out")

    with pytest.raises(KeyError, match="out"):
        cn.with_backend("cuda", outer)
    assert seen == ["cuda", "llvm", "cuda"] and require("auto") == before


def test_decorator(place, llvm):
    @cn.on_backend("cuda")
    def twice(x, n=2):
        """Two of it."""
        return place(x), x * n

    assert (twice.__name__, twice.__doc__) == ("twice", "Two of it.")
    where, y = twice(llvm.Float(4))
    assert where == "cuda" and place(y) == "llvm" and y.numpy() == 8


def test_derivatives_go_through(place, llvm):
    x = llvm.Float(1, 2)
    dr.enable_grad(x)
    dr.backward(dr.sum(cn.with_backend("cuda", lambda v: v * v, x)))
    np.testing.assert_array_equal(dr.grad(x).numpy(), [2, 4])


def test_a_field_trained_elsewhere(place, llvm):
    """The field that comes back has learned, and the one that was given has not."""

    @cn.on_backend("cuda")
    def train(field, steps):
        ns = backends.namespace("cuda" if both() else "llvm")
        result = cn.fit(field, make_batch(ns), steps, seed=3, progress=False, lr=1e-2)
        return field, result.losses

    field = make_field("llvm")
    before = field.matrix("layers.0.weights")
    trained, losses = train(field, 60)
    assert place(trained) == "llvm" and trained.precision == "single"
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_array_equal(field.matrix("layers.0.weights"), before)
    points, targets = make_batch(llvm)(cn.Key(5))
    found = dr.mean(dr.square(trained(points)[0] - targets[0]) + dr.square(trained(points)[1] - targets[1]))
    assert found.numpy() < losses[0]


def test_precision_comes_home(place):
    field = make_field("llvm", precision="half")
    assert cn.with_backend("cuda", lambda f: f, field).precision == "half"


def test_results_go_to_dr_jit_before_numpy(place, llvm):
    field = make_field("llvm")
    for args in ((np.ones(2, np.float32), field), (field, np.ones(2, np.float32))):
        moved = cn.with_backend("cuda", lambda *args: args, *args)
        assert sorted(place(v) for v in moved) == ["llvm", "llvm"]


def test_two_threads_in_two_sections(place):
    """Neither sees the other's."""
    barrier, seen = threading.Barrier(2), {}

    def look(name):
        barrier.wait(5)
        seen[name] = require("auto")
        barrier.wait(5)

    threads = [threading.Thread(target=cn.with_backend, args=(name, look, name)) for name in ("llvm", "cuda")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == {"llvm": "llvm", "cuda": "cuda"}


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"on_backend: backend is a function; .*@coopnet.on_backend\(\"cuda\"\)"):

        @cn.on_backend
        def bare():
            pass

    with pytest.raises(ValueError, match="is not a backend"):
        cn.on_backend("opencl")
    with pytest.raises(TypeError, match="on_backend: later is a generator"):

        @cn.on_backend("llvm")
        def later():
            yield 1

    with pytest.raises(TypeError, match="with_backend: function is a int"):
        cn.with_backend("llvm", 3)
    with pytest.raises(ValueError, match="is not a backend"):
        cn.with_backend("numpy", abs, 3)
