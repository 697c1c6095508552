"""Moving things between backends: LLVM and CUDA, or LLVM in both roles where there is no GPU."""

import dataclasses
from typing import NamedTuple
from unittest.mock import Mock

import drjit as dr
import numpy as np
import pytest
from support.training import make_batch, make_field
from support.two_backends import both

import coopnet as cn
from coopnet import backend as backends
from coopnet.backend import transfer
from coopnet.jit import backend_copies
from coopnet.jit.unpacked import Traversed

#: As it is without another in CUDA's role.
twin = transfer.Mover.twin

pytestmark = pytest.mark.skipif("llvm" not in backends.available(), reason="needs LLVM")


@pytest.fixture
def copies(monkeypatch):
    """Sizes of the arrays that were copied."""
    seen, copied = [], backend_copies.copied
    monkeypatch.setattr(backend_copies, "copied", lambda value, tp: seen.append(len(value)) or copied(value, tp))
    return seen


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass(frozen=True)
class Points:
    p: object
    name: str


class Struct:
    DRJIT_STRUCT = {"x": object, "n": int}

    def __init__(self):
        self.x, self.n, self.extra = None, 0, "kept"


NUMBERS = np.random.default_rng(1).random(12)


def kinds(ns):
    f = NUMBERS.astype(np.float32)
    return {
        "flat": ns.Float(f), "half": ns.Float16(f), "double": ns.Float64(NUMBERS), "mask": ns.Bool(f > 0.5),
        "int": ns.Int([-1, 5]), "uint64": ns.UInt64([2**63, 1]), "one": ns.Float(0.25),
        "nested": ns.Array3f(*f.reshape(3, 4)), "empty": ns.Float(), "tensor": ns.TensorXf(f, (3, 4)),
        "dynamic": ns.ArrayXf([ns.Float(f[:3]), ns.Float(f[3:6])]), "matrix": ns.Matrix2f(*map(float, f[:4])),
        "complex": ns.Complex2f(ns.Float(f[:3]), ns.Float(f[3:6])),
    }  # fmt: skip


def numbers(value):
    return np.asarray(value.numpy() if isinstance(value, dr.ArrayBase) else value)


@pytest.mark.parametrize("kind", sorted(kinds(backends.namespace("llvm")) if "llvm" in backends.available() else []))
def test_arrays(place, llvm, kind):
    """There and back, and to NumPy, they are the same numbers in the same kind of array."""
    value = kinds(llvm)[kind]
    there = cn.to(value, "cuda")
    if kind == "empty" and not both():
        pytest.skip("where LLVM plays CUDA, arrays are told apart by variable, and an empty one has none")
    assert place(there) == "cuda"
    assert type(there).__name__ == type(value).__name__
    back = cn.to(there, "llvm")
    assert type(back) is type(value) and (place(back) == "llvm")
    for found in (there, back):
        np.testing.assert_array_equal(numbers(found), numbers(value))
    host = cn.to(there, "numpy")
    assert isinstance(host, np.ndarray) and host.flags.writeable
    np.testing.assert_array_equal(host, numbers(value))


def test_what_is_there_is_not_copied(place, llvm, copies):
    tree = {"a": [llvm.Float(1, 2), llvm.Array2f(1, 2)], "b": (3, None, "text", np), "key": cn.Key(3)}
    assert cn.to(tree, "llvm") is tree and not copies
    there = cn.to(tree, "cuda")
    assert len(copies) == 3 and there["b"] is tree["b"] and there["key"] is tree["key"]
    assert cn.to(there, "cuda") is there and len(copies) == 3
    mixed = cn.to([there["a"][0], tree["a"][0]], "cuda")
    assert mixed[0] is there["a"][0] and len(copies) == 4


def test_once_however_often_it_occurs(place, llvm, copies):
    x = llvm.Float(1, 2)
    there = cn.to([x, {"again": x}, Pair(x, 1)], "cuda")
    assert len(copies) == 1 and there[0] is there[1]["again"] is there[2].a


def test_containers(place, llvm):
    x = llvm.Float(1, 2)
    struct = Struct()
    struct.x, struct.n = x, 4
    tree = {"pair": Pair(x, [x]), "points": Points(x, "seen"), "struct": struct, "key": cn.Key(1, llvm.UInt32(3, 4), 2)}
    there = cn.to(tree, "cuda")
    assert isinstance(there["pair"], Pair) and place(there["pair"].b[0]) == "cuda"
    assert there["points"] == Points(there["points"].p, "seen") and place(there["points"].p) == "cuda"
    assert (there["struct"].n, there["struct"].extra) == (4, "kept") and place(there["struct"].x) == "cuda"
    assert struct.x is x and place(tree["key"].index) == "llvm"  # the originals keep theirs
    assert there["key"].seed == 1 and place(there["key"].index) == "cuda"


def test_numpy_arrays(place):
    given = [np.arange(3, dtype=t) for t in ("f2", "f4", "f8", "i1", "u1", "i4", "u4", "i8", "u8")]
    given += [np.array([True, False]), np.ones((2, 3, 4), np.float32), np.arange(8.0)[::2], np.zeros(0, np.float32)]
    for value in given:
        there = cn.to(value, "llvm")
        assert dr.is_tensor_v(there) == (value.ndim > 1)
        np.testing.assert_array_equal(numbers(there), value)
        assert numbers(there).dtype == value.dtype
    own = np.arange(4096, dtype=np.float32)
    there = cn.to(own, "llvm")
    own[:] = 7
    np.testing.assert_array_equal(numbers(there), np.arange(4096))  # memory of its own
    assert cn.to(own, "numpy") is own
    for wrong in (np.array(["a"]), np.array([object()]), np.array([1j])):
        with pytest.raises(TypeError, match="to: a NumPy array of"):
            cn.to(wrong, "llvm")


def test_textures(place, llvm):
    texels = np.random.default_rng(0).random((5, 4, 3)).astype(np.float32)
    texture = llvm.Texture2f(llvm.TensorXf(texels), filter_mode=dr.FilterMode.Nearest, wrap_mode=dr.WrapMode.Mirror)
    there = cn.to(texture, "cuda")
    assert there is not texture and cn.to(texture, "llvm") is texture
    assert (there.filter_mode(), there.wrap_mode()) == (dr.FilterMode.Nearest, dr.WrapMode.Mirror)
    np.testing.assert_array_equal(there.tensor().numpy(), texels)
    np.testing.assert_array_equal(cn.to(texture, "numpy"), texels)


# ---- derivatives ------------------------------------------------------------


def test_reverse_mode(place, llvm):
    """Through several crossings, there and back."""
    w = llvm.Float(1, 2, 3)
    dr.enable_grad(w)
    x = w * w
    y = cn.to([x, dr.sin(x)], "cuda")
    z = cn.to(y[0] * 3 + y[1], "llvm")
    dr.backward(z * 2 + x)
    n = np.array([1.0, 2, 3])
    np.testing.assert_allclose(dr.grad(w).numpy(), 2 * (6 * n + 2 * n * np.cos(n * n)) + 2 * n, rtol=1e-5)


def test_forward_mode(place, llvm):
    w = llvm.Float(1, 2, 3)
    dr.enable_grad(w)
    y = cn.to(llvm.Array2f(w * w, 5 * w), "cuda")
    z = y.x + 2 * y.y
    dr.forward(w)
    np.testing.assert_allclose(dr.grad(z).numpy(), [12, 14, 16])


def test_tensors_and_several_passes(place, llvm):
    w = llvm.TensorXf([1, 2, 3, 4], (2, 2))
    dr.enable_grad(w)
    y = cn.to(w * 3, "cuda")
    for factor in (1, 5):
        dr.backward(dr.sum(y * factor), flags=dr.ADFlag.ClearVertices)
    np.testing.assert_allclose(dr.grad(w).numpy(), np.full((2, 2), 18))
    dr.backward(cn.to(w[0], "cuda"))
    np.testing.assert_allclose(dr.grad(w).numpy(), [[19, 19], [18, 18]])


def test_one_traversal_for_all_that_moved_together(place, llvm, monkeypatch):
    passes, go_on = [], backend_copies._pass_on
    monkeypatch.setattr(backend_copies, "_pass_on", lambda *args: passes.append(len(args[1])) or go_on(*args))
    w = llvm.Float(1, 2, 3)
    dr.enable_grad(w)
    moved = cn.to({"a": [w * k for k in range(1, 9)], "b": llvm.Array2f(w, w * w), "w": w}, "cuda")
    dr.backward(sum(moved["a"], moved["b"].x * moved["b"].y))
    assert passes == [10] or passes == [11]
    np.testing.assert_allclose(dr.grad(w).numpy(), 36 + 3 * np.array([1.0, 4, 9]))


@pytest.mark.parametrize("mode", ["forward_to", "backward_to"])
def test_modes_that_see_one_backend_only(place, llvm, mode):
    """They would count what crosses as zero."""
    w = llvm.Float(1, 2, 3)
    dr.enable_grad(w)
    y = cn.to(cn.to(w * w, "cuda"), "llvm") + w
    start, end = (w, y) if mode == "forward_to" else (y, w)
    dr.set_grad(start, 1)
    with pytest.raises(RuntimeError, match="see one backend only"):
        getattr(dr, mode)(end)


def test_none_where_nobody_asks(place, llvm):
    w = llvm.Float(1, 2)
    assert not dr.grad_enabled(cn.to(w, "cuda"))
    dr.enable_grad(w)
    with dr.suspend_grad():
        assert not dr.grad_enabled(cn.to(w, "cuda"))
    assert not isinstance(cn.to(w, "numpy"), dr.ArrayBase)


class Doubled:
    """Shows another array to everyone who asks."""

    DRJIT_STRUCT = {"x": object}

    def __init__(self, x):
        self.own = x

    @property
    def x(self):
        return self.own * 2

    @x.setter
    def x(self, value):
        self.own = value


def test_what_properties_make_has_derivatives(place, llvm):
    w = llvm.Float(1, 2, 3)
    dr.enable_grad(w)
    there = cn.to(Doubled(w), "cuda").own
    assert place(there) == "cuda"
    dr.backward(there * there)
    np.testing.assert_allclose(dr.grad(w).numpy(), [8, 16, 24])


# ---- fields, optimizers, averages -------------------------------------------


def grid_field(backend="llvm"):
    return make_field(backend, encoding=cn.HashGrid(2, n_levels=3, base_resolution=4, hashmap_size=256))


def test_fields(place, llvm):
    field = grid_field()
    points = np.random.default_rng(2).random((2, 300)).astype(np.float32)
    expected = field(list(llvm.Array2f(points)))
    there = cn.to(field, "cuda")
    assert there.precision == "half" and field.precision == "single"
    for name, value in cn.to(field, "numpy").items():
        np.testing.assert_array_equal(there.matrix(name), value.astype(there.matrix(name).dtype))
    found = there(cn.to(list(llvm.Array2f(points)), "cuda"))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=3e-3)
    back = cn.to(there, "llvm")
    assert back.precision == "single" and back is not there
    assert cn.to(cn.NeuralField(None, cn.MLP(2, 1)), "cuda").precision is None  # not built: nowhere


def test_masks_are_the_same(place, llvm):
    field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 32), cn.Dropout(0.5), cn.Linear(32, 32))).build(
        "llvm", "half"
    )
    there = cn.to(field, "cuda")
    key = cn.Key(7, step=3)
    x = llvm.Array2f(np.random.default_rng(2).random((2, 100)).astype(np.float32))
    one, other = field(x, key), there(cn.to(x, "cuda"), key)
    np.testing.assert_allclose(other.numpy(), one.numpy(), atol=5e-3)
    assert np.abs(one.numpy() - field(x).numpy()).max() > 0.1


class Two(cn.Module):
    DRJIT_STRUCT = {"a": cn.NeuralField, "b": cn.NeuralField}

    def __init__(self, a=None, b=None):
        self.a, self.b = a, b


def test_the_finest_level_that_counts(place, llvm):
    field = grid_field()
    field.encoding.max_level = 1
    there = cn.to(field, "cuda")
    assert there.encoding.max_level.numpy() == 1
    features = there.encoding(cn.to([llvm.Float(0.3), llvm.Float(0.4)], "cuda"))
    assert [float(v.numpy()[0]) != 0 for v in features] == [True] * 4 + [False] * 2


def test_modules_of_fields_and_grids_of_bits(place, llvm):
    joint = Two(grid_field(), make_field("llvm", seed=3))
    there = cn.to(joint, "cuda")
    assert isinstance(there, Two) and {place(there.a), place(there.b)} == {"cuda"} and place(joint.a) == "llvm"
    assert cn.to(joint, "llvm") is joint
    grid = cn.render.OccupancyGrid(8, backend="llvm")
    grid.set_density(np.arange(512) % 2, threshold=0.5)
    moved = cn.to(grid, "cuda")
    assert place(moved.bits) == "cuda" and moved.resolution == grid.resolution
    np.testing.assert_array_equal(moved.bits.numpy(), grid.bits.numpy())
    visits = cn.to(cn.render.Visits((2, 3, 4), backend="llvm"), "cuda")
    assert place(visits.counts) == "cuda" and visits.resolution == (2, 3, 4) and not visits.counts.numpy().any()


def test_modules_of_fields_with_tables(place, llvm):
    table = cn.NeuralField(cn.Embedding(5, 4), cn.MLP(out_features=1, width=8, depth=1)).build("llvm")
    there = cn.to(Two(table, grid_field()), "cuda")
    assert {place(there.a), place(there.b)} == {"cuda"}


def test_a_precision_that_is_asked_for(llvm):
    field = grid_field()
    half = cn.to(field, "llvm", precision="half")
    assert half.precision == "half" and cn.to(half, "llvm") is half
    field.set_matrix("layers.0.weights", np.full_like(field.matrix("layers.0.weights"), 1e6))
    with pytest.raises(ValueError, match=r"to: network\.layers\.0\.weights reaches 1e\+06, too large for float16"):
        cn.to(field, "llvm", precision="half")
    with pytest.raises(ValueError, match="to: precision is 'double'"):
        cn.to(field, "llvm", precision="double")


def steps(ns, backend, field, opt, ema, n):
    """Plain steps of training, from wherever the optimizer is."""
    points, targets = make_batch(ns)(cn.Key(3))
    for i in range(n):
        field.update(opt)
        loss = dr.mean(dr.square(field(points, cn.Key(1, step=i))[0] - targets[0]))
        dr.backward(loss)
        opt.step()
        ema.update(opt)
    return loss.numpy()[0]


OPTIMIZERS = {
    "Adam": lambda: dr.opt.Adam(1e-2), "SGD": lambda: dr.opt.SGD(1e-2, momentum=0.9),
    "AdamW": lambda: dr.opt.AdamW(1e-2), "RMSProp": lambda: dr.opt.RMSProp(1e-2),
    "Novograd": lambda: cn.training.Novograd(1e-2),
    "sparse": lambda: cn.training.Adam(1e-2, skip_zero_grad=True, adabound=True),
    "slow": lambda: cn.training.Adam(1e-2, accumulate=2, lookahead=2),
}  # fmt: skip


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on(place, llvm, kind):
    """On CUDA, and back: parameters, moments and average are where training goes on as if it had not moved."""
    ran = {}
    for moves in (False, True):
        field = grid_field()
        opt = OPTIMIZERS[kind]()
        opt.update(field)
        ema = cn.training.EMA(field, 0.9)
        steps(llvm, "llvm", field, opt, ema, 5)
        if moves:
            field, opt, ema = cn.to((field, opt, ema), "cuda")
            beside = getattr(opt, "layers", {}).values()  # of Novograd: which layer an entry is of
            assert len(beside) == (kind == "Novograd")
            assert all(place(v) == "cuda" for v in [*dict(opt.items()).values(), *ema.average.values(), *beside])
            field, opt, ema = cn.to((field, opt, ema), "llvm")
        steps(llvm, "llvm", field, opt, ema, 5)
        ran[moves] = {name: v.numpy() for name, v in [*opt.items(), *(("ema " + n, v) for n, v in ema.average.items())]}
    for name, value in ran[False].items():
        np.testing.assert_array_equal(ran[True][name], value, err_msg=name)  # single precision is kept all the way


def test_what_stays_is_not_laid_out_as_another(place, llvm):
    """A field at home, with its optimizer, beside one that comes."""
    here, other = grid_field(), cn.to(grid_field(), "cuda")
    opt, ema = dr.opt.Adam(1e-2, params=here), cn.training.EMA(here)
    moved = cn.to((here, opt, ema, other), "llvm")
    for name, value in moved[1].items():
        np.testing.assert_array_equal(value.numpy(), opt[name].numpy())
    assert moved[0] is here and moved[2] is ema and moved[3] is not other
    tree = (here, opt, ema)
    assert cn.to(tree, "llvm") is tree


def test_optimizers_of_modules_of_fields(place, llvm):
    joint = Two(grid_field(), make_field("llvm", seed=3))
    opt = dr.opt.Adam(1e-2, params=joint)
    there, moved = cn.to((joint, opt), "cuda")
    assert place(there.b) == "cuda"
    assert {place(value) for value in dict(opt.items()).values()} == {"llvm"}  # the original keeps its own
    for name, value in cn.to((there, moved), "llvm")[1].items():
        np.testing.assert_array_equal(value.numpy(), opt[name].numpy())


def test_schedules_of_dropout(place, llvm):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=16, depth=1, dropout=0.1)).build("llvm")
    layer = next(v for v in field.network.layers if isinstance(v, cn.Dropout))
    layer.p = dr.opaque(llvm.Float, 0.25)
    there = cn.to(field, "cuda")
    moved = next(v for v in there.network.layers if isinstance(v, cn.Dropout))
    assert moved.p.numpy() == 0.25 and (place(moved.p) == "cuda" or not both())


def test_an_optimizer_alone(place, llvm):
    field = grid_field()
    opt = dr.opt.Adam(1e-2)
    opt.update(field)
    with pytest.raises(ValueError, match=r"to: 'network.weights' is in the packed layout .* pass both, to\("):
        cn.to(opt, "cuda")
    with pytest.raises(ValueError, match="its field is not part of this call"):
        cn.to(cn.training.EMA(field), "cuda")
    with pytest.raises(TypeError, match="to: Adam works on"):
        cn.to((field, opt), "numpy")
    free = dr.opt.AdamW(1e-2, params={"vertices": llvm.Array3f(1, 2, 3), "texels": llvm.TensorXf([1, 2], (1, 2))})
    free.weight_decay = llvm.Float(0.25)
    free["weights"] = llvm.TensorXf([3, 4], (1, 2))  # called as packed ones are, which are flat
    free["mesh.weights"] = llvm.Array3f(1, 2, 3)
    there = cn.to(free, "cuda")
    assert place(dict(there.items())["vertices"]) == "cuda" and dr.grad_enabled(there["texels"])
    assert place(there.weight_decay) == "cuda" and there.weight_decay.numpy() == 0.25
    np.testing.assert_array_equal(there["weights"].numpy(), [[3, 4]])
    np.testing.assert_array_equal(there["mesh.weights"].numpy(), [[1], [2], [3]])


def test_an_optimizer_before_its_field(place, llvm):
    field = grid_field()
    opt = dr.opt.Adam(1e-2, params=field)
    moved, ema, there = cn.to((opt, cn.training.EMA(field), field), "cuda")
    assert place(there) == place(moved) == place(ema.average["network.weights"]) == "cuda"


class Stored(dict):
    """A network with one packed array, whose entries stand at ``places``."""

    def __init__(self, value, places):
        super().__init__(weights=value)
        self.packing = transfer.Packing(type(value), dr.width(value), places, ("weights",))

    def _layouts(self):
        return {"weights": self.packing}


def test_layouts_follow_a_permutation():
    """As a GPU's would: entries go where the field's go, and gaps are zero."""
    ns = backends.namespace("llvm")
    rng = np.random.default_rng(0)
    old, new = rng.permutation(8)[:5], rng.permutation(11)[:5]
    mover = transfer.Mover("llvm", "auto")
    stored = Stored(ns.Float(np.arange(8)), old)
    mover._networks.append((stored, Stored(ns.Float16(np.zeros(11)), new)))
    value = ns.Float(np.arange(8) + 1)
    expected = np.zeros(11)
    expected[new] = (np.arange(8) + 1)[old]
    numbers = ns.UInt32(value)
    for given, single, tp in ((value, True, ns.Float), (value, False, ns.Float16), (numbers, False, ns.UInt32)):
        moved = mover.follow("weights", given, *([True] if single else []))
        assert type(moved) is tp
        np.testing.assert_array_equal(moved.numpy(), expected)
    # of two with as many entries, only what asks for them minds
    other = Stored(ns.Float(np.arange(8)), rng.permutation(8)[:5])
    mover._networks.append((other, Stored(ns.Float(np.zeros(8)), old)))
    with pytest.raises(ValueError, match="several fields have 'weights' of 8 entries, in different layouts"):
        mover.follow("weights", value)


def test_what_an_optimizer_remembers_follows_a_permutation():
    ns = backends.namespace("llvm")
    rng = np.random.default_rng(0)
    old, new = rng.permutation(8), rng.permutation(11)[:8]
    mover = transfer.Mover("llvm", "auto")
    mover._networks.append((Stored(ns.Float(np.zeros(8)), old), Stored(ns.Float(np.zeros(11)), new)))
    opt = dr.opt.Adam(1e-2, params={"weights": ns.Float(np.arange(8))})
    dr.set_grad(opt["weights"], ns.Float(np.arange(8) + 1))
    opt.step()
    was, _, _, (_, *before) = opt.state["weights"]
    found, _, _, (_, *after) = mover.moved(opt).state["weights"]
    for value, moved in zip([was, *before[:2]], [found, *after[:2]], strict=True):
        expected = np.zeros(11, np.float32)
        expected[new] = value.numpy()[old]
        np.testing.assert_array_equal(moved.numpy(), expected)


# ---- what cannot be moved ---------------------------------------------------


def test_odd_trees(place, llvm):
    x = llvm.Float(1, 2)
    loop = [x]
    loop.append(loop)
    with pytest.raises(ValueError, match="to: a list contains itself"):
        cn.to(loop, "cuda")

    deep, flat = [x], np.broadcast_to(np.float32(1), (2, 2**31))
    for _ in range(5000):
        deep = [deep]
    for backend in ("cuda", "numpy"):
        with pytest.raises(ValueError, match=r"^to: the tree holds lists .* hundreds deep; flatten it\.$"):
            cn.to(deep, backend)
    with pytest.raises(ValueError, match=r"^to: the tree holds lists"):
        cn.with_backend("llvm", lambda x: deep, np.zeros(3))
    with pytest.raises(ValueError, match=r"^to: the tree holds lists"):
        cn.with_backend("cuda", len, deep)
    with pytest.raises(ValueError, match=r"^to: a NumPy array of shape \(2, 2147483648\) has 4294967296 entries; "):
        cn.to([flat], "cuda")
    with pytest.raises(ValueError, match=r"^to: a NumPy array of shape \(3, 2147483648\) has 6442450944 entries; "):
        cn.to(np.broadcast_to(np.float32(1), (3, 2**31)), "cuda")

    class Three(tuple):
        def __new__(cls, a, b, c):
            return tuple.__new__(cls, (a, b, c))

    moved = cn.to(Three(x, 1, 2), "cuda")
    assert type(moved) is Three and place(moved[0]) == "cuda" and moved[1:] == (1, 2)
    generator = llvm.PCG32(4)
    there = cn.to(generator, "cuda")
    np.testing.assert_array_equal(there.state.numpy(), generator.state.numpy())
    with pytest.raises(TypeError, match="to: NumPy has no PCG32"):
        cn.to(generator, "numpy")
    assert cn.to(llvm.Texture2f, "cuda") is llvm.Texture2f
    assert dr.width(cn.to(llvm.ArrayXf(), "cuda")) == 0
    big = np.arange(4, dtype=">f4").reshape(2, 2)[:, ::-1]
    np.testing.assert_array_equal(cn.to(big, "llvm").numpy(), big)
    with pytest.raises(TypeError, match="to: a masked NumPy array"):
        cn.to(np.ma.ones(3), "llvm")


def test_what_cannot_be_moved(place, llvm):
    import drjit.nn as drnn

    with pytest.raises(TypeError, match=r"to: a CoopVec lives within a kernel; move its components"):
        cn.to([drnn.CoopVec(llvm.Float(1))], "cuda")
    net = cn.MLP(2, 1, width=4).alloc(llvm.TensorXf)
    with pytest.raises(TypeError, match=r"to: a Sequential cannot be moved alone; put it into a field"):
        cn.to(net, "cuda")
    with pytest.raises(TypeError, match=r"to: a packed matrix cannot be moved alone; move the NeuralField"):
        cn.to({"matrix": make_field("llvm").network.layers[0].weights}, "cuda")
    foreign = type("Shape", (), {"__module__": "mitsuba.llvm_ad_rgb", "DRJIT_STRUCT": {}})
    for other, name in ((Traversed(), "Traversed"), (foreign(), "Shape")):
        with pytest.raises(TypeError, match=f"to: a {name} cannot be moved; move the arrays that it is made of"):
            cn.to([other], "cuda")
    for module in ("elsewhere", "drjit.llvm.ad"):
        with pytest.raises(TypeError, match=r"to: a Strange cannot be moved; convert it to a Dr.Jit array"):
            twin(transfer.Mover("llvm", "auto"), type("Strange", (), {"__module__": module}))
    with pytest.raises(ValueError, match="to: precision"):
        cn.to(1, "llvm", precision=3)
    with pytest.raises(ValueError, match="is not a backend"):
        cn.to(1, "opencl")


def test_not_while_something_is_recorded(llvm):
    @dr.freeze
    def frozen(x):
        cn.to(x, "numpy")
        return x

    with pytest.raises(RuntimeError) as caught:
        frozen(llvm.Float(1, 2))
    assert "to: called while Dr.Jit records" in str(caught.getrepr(chain=True))


def test_no_memory_left(place, llvm, monkeypatch):
    def full(*args):
        raise RuntimeError("jit_malloc(): out of memory! Could not allocate 8 bytes of device memory.")

    values = llvm.Float(1, 2), make_field("llvm")
    monkeypatch.setattr(backend_copies, "copied", full)
    monkeypatch.setattr(cn.NeuralField, "allocate", full)
    for value in values:
        with pytest.raises(cn.BackendError, match=r"to: no memory left on the cuda backend; free arrays"):
            cn.to(value, "cuda")
    monkeypatch.setattr(np, "ascontiguousarray", Mock(side_effect=MemoryError("Unable to allocate 32.0 GiB")))
    for array in (np.zeros(3), np.broadcast_to(np.uint8(1), 2**32 - 1)):  # as many as there can be
        with pytest.raises(cn.BackendError, match=r"to: no memory left on the cuda backend; free arrays"):
            cn.to(array, "cuda")
    monkeypatch.setattr(backend_copies, "copied", Mock(side_effect=RuntimeError("something else")))
    with pytest.raises(RuntimeError, match=r"^something else$"):
        cn.to(values[0], "cuda")


def test_a_backend_that_is_not_there():
    if both():
        pytest.skip("both are here")
    with pytest.raises(cn.BackendError, match="The CUDA backend needs"):
        cn.to(1, "cuda")
