"""Fields as modules of PyTorch."""

from __future__ import annotations

import copy
import doctest
import inspect
import pickle
import re
import threading

import drjit as dr
import numpy as np
import pytest
from support.machines import ROOT, run

import coopnet as cn

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # its threads and Dr.Jit's would fight

from coopnet.interop.torch import Module  # noqa: E402

DEVICES = {"llvm": "cpu", "cuda": "cuda"}


@pytest.fixture(scope="module")
def device(backend):
    if backend == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return torch.device(DEVICES[backend], 0) if backend == "cuda" else torch.device("cpu")


def smooth(backend, outputs=2, **options):
    net = cn.MLP(3, outputs, width=16, depth=2, activation="softplus", bias=True, **options)
    return cn.NeuralField(None, net).build(backend, seed=3)


def gridded(backend, **options):
    grid = cn.HashGrid(2, n_levels=3, hashmap_size=2**8)
    return cn.NeuralField(grid, cn.MLP(out_features=3, width=16, depth=2, **options)).build(backend, seed=1)


def twin(module):
    """A network of :func:`smooth`'s kind in PyTorch's double precision, with the same parameters, on the CPU."""
    layers = []
    for name in ("0", "2", "4"):
        own = getattr(module.network.layers, name)
        linear = torch.nn.Linear(*reversed(own.weights.shape), dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(own.weights)
            linear.bias.copy_(own.bias)
        layers += [linear, torch.nn.Softplus()]
    return torch.nn.Sequential(*layers[:-1])


def pairs(module, other):
    """Gradients of the parameters of a module and of its :func:`twin`."""
    for name, linear in zip(("0", "2", "4"), list(other)[::2], strict=True):
        own = getattr(module.network.layers, name)
        yield own.weights.grad, linear.weight.grad
        yield own.bias.grad, linear.bias.grad


def points(n, features, device, seed=0):
    return torch.rand((n, features), generator=torch.Generator().manual_seed(seed)).to(device)


def arrays(x, ns):
    return [ns.Float(c.cpu().numpy()) for c in x.detach().T.contiguous()]


def near(a, b, tolerance, size=None):
    """Is ``a`` ``b``, relative to the largest entry of ``b``?"""
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    size = b.abs().max() if size is None else size
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * size, f"{(a - b).abs().max() / size:.2e}"


def loose(backend, single=1e-5, half=2e-2):
    return half if backend == "cuda" else single


# ---- Values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 33, 1000])
def test_values_are_those_of_the_field(backend, ns, device, n):
    field = gridded(backend)
    module, x = Module(field), points(n, 2, device)
    y = module(x)
    assert y.shape == (n, 3) and y.dtype == torch.float32 and y.device == x.device
    near(y, torch.from_numpy(field(arrays(x, ns)).numpy().T.copy()), loose(backend, 1e-6, 1e-3))


def test_any_shape_layout_and_type(backend, device):
    module = Module(smooth(backend)).eval()
    x = points(60, 3, device)
    y = module(x)
    same = loose(backend, 1e-6, 1e-3)
    near(module(x.reshape(4, 5, 3, 3)), y.reshape(4, 5, 3, 2), same)
    near(module(x[0]), y[0], same)
    near(module(x.T.contiguous().T), y, same)
    near(module(x[1:]), y[1:], same)  # lies where kernels don't expect it
    near(module(x[:1].expand(7, 3)), y[:1].expand(7, 2), same)
    near(module(x.double()), y, same)
    for dtype in (torch.float16, torch.bfloat16):
        assert module(x.to(dtype)).dtype == torch.float32
        near(module(x.to(dtype)), module(x.to(dtype).float()), same)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0, 3)])
def test_no_samples(backend, device, shape):
    module = Module(smooth(backend))
    x = torch.zeros(shape, device=device, requires_grad=True)
    y = module(x)
    assert y.shape == (*shape[:-1], 2)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert dx.shape == shape
    (y.sum() + dx.sum()).backward()
    assert x.grad.shape == shape
    assert all((p.grad == 0).all() for p in module.parameters())


def test_half_precision_outputs(backend, device):
    field = cn.NeuralField(None, cn.MLP(2, 3, width=16, depth=1), output="float16").build(backend, "half", seed=1)
    module, x = Module(field), points(50, 2, device).requires_grad_()
    y = module(x)
    assert y.dtype == torch.float16 and module(x[:0]).dtype == torch.float16
    y.float().square().sum().backward()
    assert x.grad.dtype == torch.float32 and x.grad.abs().max() > 0


def test_inputs_keep_their_type_in_gradients(backend, device):
    module = Module(smooth(backend))
    for dtype in (torch.float16, torch.float64):
        x = points(10, 3, device).to(dtype).requires_grad_()
        module(x).sum().backward()
        assert x.grad.dtype == dtype


# ---- Gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 77, 1 << 18])  # a library multiplies the products of the largest
def test_gradients_against_double_precision(backend, device, n):
    module = Module(smooth(backend))
    other, x = twin(module), points(n, 3, device).requires_grad_()
    x64 = x.detach().cpu().double().requires_grad_()
    weight = points(n, 2, device, seed=1)
    (module(x) * weight).mean().backward()
    (other(x64) * weight.cpu()).mean().backward()
    near(x.grad, x64.grad, loose(backend))
    for a, b in pairs(module, other):
        near(a, b, loose(backend))


def test_gradients_of_tables(backend, ns, device):
    field, scale = gridded(backend), 2.0**14  # its outputs are small, and half precision ends at 6e-8
    module, x = Module(field), points(500, 2, device)
    module(x).square().sum().backward()
    for name in field:
        dr.enable_grad(field[name])
    dr.backward(scale * dr.sum(dr.square(field(arrays(x, ns))), axis=None))
    for name, p in module.named_parameters():
        near(p.grad, torch.from_numpy(field.gradient(name).astype(np.float64) / scale), loose(backend))


@pytest.mark.parametrize("n", [1, 77, 1 << 17])
def test_gradients_of_gradients_against_double_precision(backend, device, n):
    """Of a function of the input's gradient, with respect to parameters, the input and the cotangent."""
    module = Module(smooth(backend))
    other = twin(module)

    def derive(f, x, dy):
        (dx,) = torch.autograd.grad(f(x), x, dy, create_graph=True)
        (dx.square().sum(-1) - 1).square().mean().backward()
        return x.grad, dy.grad

    x, dy = points(n, 3, device), points(n, 2, device, seed=1)
    found = derive(module, x.requires_grad_(), dy.requires_grad_())
    double = (t.detach().cpu().double().requires_grad_() for t in (x, dy))
    for a, b in zip(found, derive(other, *double), strict=True):
        near(a, b, loose(backend, half=0.1))  # the worst of 2^17 samples
    for a, b in list(pairs(module, other))[:-1]:
        near(a, b, loose(backend, half=5e-2))
    last = module.network.layers.get_submodule("4").bias.grad
    assert last is None or (last == 0).all()


def test_a_loss_on_values_and_gradients(backend, device):
    module = Module(smooth(backend, outputs=1))
    other, x = twin(module), points(200, 3, device)

    def loss(f, x):
        y = f(x)
        (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.square().mean() + (dx.norm(dim=-1) - 1).square().mean()

    loss(module, x.requires_grad_()).backward()
    loss(other, x.detach().cpu().double().requires_grad_()).backward()
    for a, b in pairs(module, other):
        near(a, b, loose(backend, half=5e-2))


def test_gradcheck(backend, device):
    if backend == "cuda":
        pytest.skip("finite differences of half precision")
    module, x = Module(smooth(backend)), points(5, 3, device).double().requires_grad_()
    options = {"eps": 1e-2, "atol": 1e-3, "rtol": 1e-2, "nondet_tol": 1e-6}

    def f(x):
        return module(x).double()

    assert torch.autograd.gradcheck(f, x, **options)
    assert torch.autograd.gradgradcheck(f, x, **options)


def test_nothing_is_computed_that_nobody_asks_for(backend, device, monkeypatch):
    module = Module(gridded(backend))
    program, asked = module._programs.own, []
    pullback = program.pullback
    monkeypatch.setattr(program, "pullback", lambda at, dy, wants: asked.append(wants) or pullback(at, dy, wants))
    x = points(20, 2, device)
    module(x).sum().backward()
    (y := module(x.requires_grad_())).sum().backward(retain_graph=True)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.autograd.grad(y.sum(), module.encoding.data, retain_graph=True)
    module.network.requires_grad_(False)
    module(x.detach()).sum().backward()
    assert asked == [[False, True, True], [True] * 3, [True, False, False], [False, True, False], [False, True, False]]


@pytest.mark.parametrize("first, then", [("encoding", "encoding network"), ("x", "x network"), ("x network", "x")])
def test_what_needs_gradients_may_change(backend, device, first, then):
    """Which parameters do is part of a recording's key."""
    module, x = Module(gridded(backend)), points(20, 2, device)
    for asked in (first, then):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name.split(".")[0] in asked.split())
            parameter.grad = None
        at = x.clone().requires_grad_("x" in asked.split())
        module(at).square().sum().backward()
        assert (at.grad is not None) == at.requires_grad
        for name, parameter in module.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, (asked, name)


def test_outputs_and_gradients_may_be_changed_in_place(backend, device):
    module = Module(smooth(backend))
    x = points(9, 3, device).requires_grad_()
    expected = module(x).detach().clone()
    for n in (0, 9):
        y = module(x[:n])
        y += 1
        y.mul_(3.0)
        y = torch.relu_(y)
        if n:
            near(y, (3 * (expected + 1)).relu(), 1e-5)
        y.sum().backward()
    other, z = twin(module), x.detach().double().cpu().requires_grad_()
    (3 * (other(z) + 1)).relu().sum().backward()
    near(x.grad, z.grad, loose(backend))
    (g,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    g -= 1
    g.square().sum().backward()


def test_inference_first(backend, device, monkeypatch):
    """What a call keeps for others may be differentiated in those, above all where layouts are the hardware's."""
    module = Module(smooth(backend))
    for name, place in module._programs.own.places.items():
        explicit = np.arange(place.size) if place.places is None else place.places
        module._programs.own.places[name] = place._replace(places=explicit)
    x = points(5, 3, device)
    with torch.inference_mode():
        expected = module(x)
    y = module(x)
    near(y, expected, 1e-6)
    y.sum().backward()
    assert module.network.layers.get_submodule("0").weights.grad.abs().max() > 0


@pytest.mark.parametrize("shape", [(64,), (3, 16), None])
def test_parameters_of_another_shape(backend, device, shape):
    """Recorded kernels would read beyond them."""
    module = Module(smooth(backend))
    x = points(5, 3, device)
    module(x)
    name = "network.layers.0.weights"
    given = None if shape is None else torch.zeros(shape, device=device)
    with pytest.raises(ValueError, match=rf"the parameter {name} (has shape|is none).*\(16, 3\) is needed"):
        torch.func.functional_call(module, {name: given}, (x,))


def test_a_key_that_changes_between_the_passes(backend, ns, device):
    module = Module(smooth(backend, dropout=0.5))
    x, index = points(5, 3, device).requires_grad_(), ns.UInt32(dr.arange(ns.UInt32, 5))
    y = module(x, cn.Key(1, index)).sum()
    (before,) = torch.autograd.grad(y, x, retain_graph=True)
    index += 100
    (after,) = torch.autograd.grad(y, x)
    assert torch.equal(before, after)


def test_what_cannot_be_differentiated_says_so(backend, device):
    module, x = Module(smooth(backend)), points(10, 3, device).requires_grad_()
    weights = module.network.layers.get_submodule("0").weights
    (dw,) = torch.autograd.grad(module(x).sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient with respect to parameters is not available"):
        dw.sum().backward()
    (dx,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivatives, as of losses on second ones, are not available"):
        (ddx.sum() + module(x).sum()).backward()


def test_parameters_changed_between_the_passes_are_noticed(backend, device):
    module = Module(cn.NeuralField(cn.HashGrid(2, n_levels=2, hashmap_size=64), cn.MLP(out_features=1)).build(backend))
    y, x = module(points(10, 2, device)), points(10, 2, device).requires_grad_()
    z = module(x)
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    y.sum().backward(retain_graph=True)
    before = module.encoding.data.grad.clone()
    y.sum().backward()
    near(module.encoding.data.grad, 2 * before, loose(backend, 1e-6))


def test_steps_are_recorded_once(backend, device):
    module, x = Module(gridded(backend)), points(3000, 2, device)
    optimizer = torch.optim.Adam(module.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
    program = module._programs.own
    assert program._value.n_recordings == program._pulled.n_recordings == 1


# ---- Half precision -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**16, 2.0**24])
def test_scaled_losses_in_half_precision(backend, device, scale):
    """Losses as small as means over millions of samples, or as large as a ``GradScaler`` makes them."""
    half = cn.NeuralField(None, cn.MLP(3, 1, width=16, depth=2, activation="softplus", bias=True))
    module, x = Module(half.build(backend, "half", seed=3)), points(3000, 3, device).requires_grad_()
    other, x64 = twin(module), x.detach().cpu().double().requires_grad_()

    def loss(f, x):
        y = f(x)
        (dx,) = torch.autograd.grad(y.sum() * scale, x, create_graph=True)
        return scale * y.square().mean() + dx.square().mean() / scale

    loss(module, x).backward()
    loss(other, x64).backward()
    near(x.grad, x64.grad, 3e-2)
    for a, b in pairs(module, other):
        near(a, b, 3e-2)


@pytest.mark.parametrize("outlier", [1e2, 1e4])
def test_one_large_cotangent_in_half_precision(backend, device, outlier):
    """It does not push those of all other samples below what half precision can hold."""
    half = cn.NeuralField(None, cn.MLP(3, 1, width=16, depth=2, activation="softplus", bias=True))
    module, x = Module(half.build(backend, "half", seed=3)), points(1 << 18, 3, device)
    weights = torch.ones((len(x), 1), device=device)
    weights[0] = outlier
    other, y = twin(module), x.double().cpu()
    (module(x) * weights).mean().backward()
    (other(y) * weights.double().cpu()).mean().backward()
    for found, expected in pairs(module, other):
        near(found, expected, 2e-2)


def test_overflows_reach_the_scaler(backend, device):
    field = cn.NeuralField(None, cn.MLP(3, 1, width=16, depth=1)).build(backend, "half")
    module, x = Module(field), points(100, 3, device)
    (module(x) * float("inf")).sum().backward()
    assert all(not p.grad.isfinite().all() for p in module.parameters())


def test_grad_scaler_and_autocast(backend, device):
    module, head = Module(smooth(backend)), torch.nn.Linear(3, 3).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**16)
    with torch.autocast(device.type, dtype=torch.float16 if device.type == "cuda" else torch.bfloat16):
        y = module(head(points(500, 3, device)).sigmoid())
        assert y.dtype == torch.float32
        loss = y.square().mean()
    scaler.scale(loss).backward()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    scaler.step(optimizer)
    scaler.update()
    assert all(not torch.equal(p, before[name]) for name, p in module.named_parameters())
    assert head.weight.grad.isfinite().all() and head.weight.grad.abs().max() > 0


# ---- Dropout ------------------------------------------------------------------------------------------------


def test_dropout_is_a_function_of_seed_and_step(backend, ns, device):
    field = smooth(backend, dropout=0.3)
    module, x = Module(field, seed=7), points(100, 3, device)
    first, second = module(x), module(x)
    assert int(module.step) == 2 and not torch.equal(first, second)
    same = loose(backend, 1e-6, 2e-3)
    for i, y in enumerate((first, second)):
        expected = torch.from_numpy(field(arrays(x, ns), cn.Key(7, step=i)).numpy().T.copy())
        near(y, expected, same)
        near(module(x, cn.Key(7, step=i)), expected, same)
    assert int(module.step) == 2
    index = ns.UInt32(list(reversed(range(100))))
    near(module(x.flip(0), cn.Key(7, index)).flip(0), first, same)
    module.eval()
    near(module(x), torch.from_numpy(field(arrays(x, ns)).numpy().T.copy()), same)
    near(module(x, cn.Key(7)), first, same)


def test_both_passes_drop_the_same(backend, device):
    """Of a network that is linear but for its dropout, the gradient is known from its values."""
    net = cn.Sequential(cn.Linear(3, 16, bias=False), cn.Dropout(0.5), cn.Linear(16, 1, bias=False))
    module = Module(cn.NeuralField(None, net).build(backend, seed=1), seed=1)
    x = points(64, 3, device).requires_grad_()
    y, _ = module(x), module(x)  # another step between
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    near((dx * x).sum(-1, keepdim=True), y, loose(backend))
    (v,) = torch.autograd.grad(
        (dx * x.detach()).sum(), module.network.layers.get_submodule("2").weights, retain_graph=True
    )
    (w,) = torch.autograd.grad(y.sum(), module.network.layers.get_submodule("2").weights)
    near(v, w, loose(backend))


def test_training_goes_on_where_it_was(backend, device):
    module, x = Module(smooth(backend, dropout=0.3), seed=2), points(40, 3, device)
    module(x)
    state = copy.deepcopy(module.state_dict())
    expected = module(x)
    other = Module(smooth(backend, dropout=0.3), seed=2)
    other.load_state_dict(state)
    assert torch.equal(other(x), expected) and int(other.step) == 2


def differentiated(module, function, x, reentrant):
    """Gradients of input and parameters of two turns, with a checkpoint around ``function`` unless that is ``None``."""
    x = x.clone().requires_grad_()
    for _ in range(2):
        again = {"use_reentrant": reentrant}
        y = function(x) if reentrant is None else torch.utils.checkpoint.checkpoint(function, x, **again)
        y.square().sum().backward()
    return [x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpoints_draw_what_they_drew(backend, device, dropout, reentrant):
    """Also where what is saved behind the module depends on its masks, and where it is called several times."""
    field, x = smooth(backend, dropout=dropout), points(50, 3, device)
    found = []
    for way in (None, reentrant):
        module = Module(field, seed=4)
        found.append(differentiated(module, lambda x, f=module: f(x).sin() * f(x + 1), x, way))
        found[-1].append(module.step)
        assert int(module.step) == 4
    for a, b in zip(*found, strict=True):
        near(b, a, loose(backend, 1e-6, 2e-3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_calls_with_one_input_need_keys_in_checkpoints(backend, device, reentrant):
    field, x = smooth(backend, dropout=0.3), points(50, 3, device)
    module = Module(field, seed=4)
    with pytest.raises(RuntimeError, match=r"2 calls had this input.*give each call a key.*module\(x, coopnet\.Key"):
        differentiated(module, lambda x: module(x) * module(x), x, reentrant)

    def keyed(x):
        return module(x, cn.Key(4)) * module(x, cn.Key(4, step=1))

    found = []
    for way in (None, reentrant):
        module.zero_grad()
        found.append([g.clone() for g in differentiated(module, keyed, x, way)])
    for a, b in zip(*found, strict=True):
        near(b, a, loose(backend, 1e-6, 2e-3))


def test_calls_that_are_remembered(backend, device):
    """Those of copies are not; those that were differentiated, or never will be, do not get in the way of others."""
    module, x = Module(smooth(backend, dropout=0.3), seed=4), points(50, 3, device)
    differentiated(module, module, x, None)
    differentiated(module, module, x, False)
    with torch.no_grad():
        module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        differentiated(other, other, x, True)
    with pytest.raises(RuntimeError, match="2 calls had this input"):
        differentiated(module, module, x, True)
    y = torch.utils.checkpoint.checkpoint(module, points(50, 3, device, 1).requires_grad_(), use_reentrant=False)
    y.sum().backward(retain_graph=True)
    y.sum().backward()


# ---- Parameters ---------------------------------------------------------------------------------------------


def test_parameters_are_those_of_checkpoints(backend, tmp_path):
    field = gridded(backend, bias=True)
    module = Module(field)
    cn.save(tmp_path / "a.safetensors", field)
    tensors = cn.io.read(tmp_path / "a.safetensors").tensors
    assert dict(module.named_parameters()).keys() == tensors.keys()
    for name, p in module.named_parameters():
        assert p.dtype == torch.float32 and p.device.type == DEVICES[backend]
        assert np.array_equal(p.detach().cpu().numpy(), tensors[name].astype(np.float32))
    empty = Module(field.build(backend, seed=9))
    left = empty.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()}, strict=False)
    assert left.missing_keys == ["step"] and not left.unexpected_keys
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), empty.parameters(), strict=True))


def test_back_to_a_field(backend, ns, device):
    module, x = Module(gridded(backend, bias=True)), points(100, 2, device)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1.5)
    field = module.field()
    assert field.precision == ("half" if backend == "cuda" else "single")
    near(module(x), torch.from_numpy(field(arrays(x, ns)).numpy().T.copy()), loose(backend, 1e-6, 1e-3))
    assert np.array_equal(field.matrix("layers.0.bias"), module.network.layers.get_submodule("0").bias.detach().cpu())


def test_the_field_is_not_touched(backend, ns, device):
    field = gridded(backend)
    before = {name: value.numpy().copy() for name, value in field.items()}
    module, x = Module(field), points(100, 2, device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(x).square().sum().backward()
    optimizer.step()
    assert all(np.array_equal(value.numpy(), before[name]) for name, value in field.items())
    assert not any(dr.grad_enabled(value) for value in field.values())


def test_copies_have_parameters_of_their_own(backend, device):
    module, x = Module(smooth(backend, dropout=0.2), seed=5), points(20, 3, device)
    module(x)
    expected = module.eval()(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), expected) and other.seed == 5 and int(other.step) == 1
        with torch.no_grad():
            other.network.layers.get_submodule("0").weights.zero_()
        assert torch.equal(module(x), expected) and not torch.equal(other(x), expected)


def test_parameters_of_other_kinds(backend, device):
    """Half precision, computed from others, given by the caller: what PyTorch's own modules take."""
    module, x = Module(smooth(backend)).eval(), points(20, 3, device)
    expected = module(x)
    given = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    y = torch.func.functional_call(module, given, (x,))
    near(y, expected, 1e-6)
    y.sum().backward()
    assert all(p.grad is not None for p in given.values()) and all(p.grad is None for p in module.parameters())
    torch.nn.utils.parametrizations.weight_norm(module.network.layers.get_submodule("0"), "weights")
    near(module(x), expected, loose(backend, 1e-5, 2e-3))
    near(Module(smooth(backend)).half()(x), expected, 5e-3)


def test_on_another_backend(device, backend):
    others = [name for name in cn.backend.available() if name != backend]
    if not others or not torch.cuda.is_available():
        pytest.skip("there is one backend")
    module = Module(smooth(backend))
    x = points(50, 3, "cpu")
    near(module.to(DEVICES[others[0]])(x.to(DEVICES[others[0]])), module.to(device)(x.to(device)), 1e-2)
    assert module.to(DEVICES[others[0]]).field().precision == ("half" if others[0] == "cuda" else "single")


# ---- Training -----------------------------------------------------------------------------------------------


def test_trains_as_fit_does(backend, ns, device):
    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 2048)
        return [x, y], [dr.sin(6 * x) * y, x * y, dr.cos(5 * y)]

    field, steps = gridded(backend), 150
    module = Module(field)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for i in range(steps):
        drawn = batch(cn.Key(3, step=i))
        x, target = (torch.from_numpy(np.stack([v.numpy() for v in part], 1)).to(device) for part in drawn)
        loss = torch.nn.functional.mse_loss(module(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    expected = cn.fit(field, batch, steps, lr=1e-2, seed=3, progress=False).losses
    assert expected[-1] < 0.02 * expected[0]
    last, fitted = np.mean(losses[-10:]), np.mean(expected[-10:])
    assert abs(last / fitted - 1) < loose(backend, 0.05, 0.25)
    assert abs(losses[0] / expected[0] - 1) < loose(backend, 1e-5, 1e-2)


def test_modes_go_with_the_call(backend, device, monkeypatch):
    """PyTorch goes back in threads of its own on CUDA, which know nothing of this one's contexts."""
    module, seen = Module(smooth(backend)), []
    program = module._programs.own
    pullback = program.pullback
    monkeypatch.setattr(program, "pullback", lambda at, *rest: seen.append(at.modes) or pullback(at, *rest))
    with cn.deterministic(), cn.gradient_path("spill"):
        y = module(points(10, 3, device))
    y.sum().backward()
    assert seen == [(True, "spill", ())]


@pytest.mark.parametrize("path", ["auto", "banks", "spill", "builtin"])
def test_replays(backend, device, path):
    """The same numbers in other memory have the same gradients; what calls read is not where it was recorded."""
    module, x = Module(gridded(backend)), points(2048, 2, device)
    first = None
    for _ in range(4):
        with torch.no_grad():
            for p in module.parameters():
                p.data = p.data.clone()
        module.zero_grad()
        with cn.gradient_path(path):
            module(x).square().sum().backward()
        found = [p.grad.clone() for p in module.parameters()]
        first = first or found
        for a, b in zip(found, first, strict=True):
            near(a, b, loose(backend))


def test_while_gradients_are_suspended(backend, device):
    module = Module(smooth(backend))
    with dr.suspend_grad():
        module(points(10, 3, device)).sum().backward()
    assert all(p.grad.abs().max() > 0 for p in module.parameters())


def test_streams(backend, device):
    """Work of another stream than the default one comes before and behind Dr.Jit's, however long it takes."""
    if backend != "cuda":
        pytest.skip("the CPU has no streams")
    module, x = Module(gridded(backend)), points(1 << 14, 2, device)
    y = module(x)
    y.square().sum().backward()
    expected = [y.detach().clone(), *(p.grad.clone() for p in module.parameters())]
    side = torch.cuda.Stream(device)
    for _ in range(3):
        module.zero_grad()
        torch.cuda.synchronize(device)
        with torch.cuda.stream(side):
            junk = torch.full_like(x, torch.nan)
            side.synchronize()
            del junk  # the next tensor of this size has its memory
            torch.cuda._sleep(50_000_000)
            late = x.clone()
            y = module(late)
            torch.cuda._sleep(50_000_000)
            seen = y.detach().clone()
            y.square().sum().backward()
            found = [seen, *(p.grad.clone() for p in module.parameters())]
        dr.eval(dr.zeros(dr.cuda.Float, 1 << 20) + dr.opaque(dr.cuda.Float, 1))  # Dr.Jit takes memory again
        side.synchronize()
        for a, b in zip(found, expected, strict=True):
            near(a, b, loose(backend))


def test_threads(backend, device):
    modules, x = [Module(smooth(backend)) for _ in range(3)], points(300, 3, device)
    errors = []

    def work(module):
        try:
            for _ in range(10):
                module(x).square().sum().backward()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for a, b in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        near(a.grad, b.grad, loose(backend, 1e-6))


# ---- Errors -------------------------------------------------------------------------------------------------


def test_errors(backend, ns, device):
    with pytest.raises(TypeError, match=r"torch\.Module: field is a int; a NeuralField is needed"):
        Module(3)
    with pytest.raises(ValueError, match="not built yet"):
        Module(cn.NeuralField(None, cn.MLP(2, 3)))
    with pytest.raises(ValueError, match="has no parameters"):
        Module(cn.NeuralField(cn.Frequency(2, in_features=2), cn.ReLU()).build(backend))
    with pytest.raises(ValueError, match=r"torch\.Module: seed is -1"):
        Module(smooth(backend), seed=-1)
    module, x = Module(smooth(backend)), points(4, 3, device)
    with pytest.raises(TypeError, match=r"torch\.Module: x is a ndarray; a tensor is needed"):
        module(np.zeros((4, 3)))
    with pytest.raises(TypeError, match=r"torch\.Module: x holds torch.int64"):
        module(x.long())
    with pytest.raises(ValueError, match=r"torch\.Module: x has shape \(4, 2\); \(\.\.\., 3\) is needed"):
        module(x[:, :2])
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        module(x[0, 0])
    with pytest.raises(TypeError, match=r"key is a int; a coopnet\.Key or None"):
        module(x, 3)
    with pytest.raises(ValueError, match="the index of key has 3 entries for 4 rows of x"):
        module(x, cn.Key(1, ns.UInt32([1, 2, 3])))
    with pytest.raises(ValueError, match=r"x is on meta, but the parameters are on .*; call module.to\('meta'\)"):
        module(x.to("meta"))
    with pytest.raises(ValueError, match="the parameters are on meta; accepted devices are cpu, cuda"):
        copy.deepcopy(module).to("meta")(x.to("meta"))
    with pytest.raises(RuntimeError, match="record"):
        dr.freeze(lambda v: (module(x), v)[1])(ns.Float(1, 2))
    assert int(module.step) == 0  # what raised was no call


def test_a_layer_without_a_derivative_says_so(backend, device):
    class Odd(cn.Module):
        DRJIT_STRUCT = {}

        def __call__(self, x, key=None):
            return x * 2

        def _alloc(self, dtype, size, rng):
            return Odd(), size

    module = Module(cn.NeuralField(None, cn.Sequential(cn.Linear(3, 1), Odd())).build(backend))
    x = points(5, 3, device).requires_grad_()
    (dx,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError) as error:
        dx.sum().backward()
    assert "Odd: this layer has no rule" in str(error.value) or "Odd" in str(error.value.__cause__)


def test_the_page(backend, device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build = cn.NeuralField.build
    monkeypatch.setattr(cn.NeuralField, "build", lambda self, to=backend, *rest: build(self, to, *rest))
    text = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    scope: dict = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code.replace("range(500)", "range(60)").replace("1 << 14", "1 << 10"), scope)
    assert scope["loss"] < 0.3 and (tmp_path / "field.safetensors").exists()
    assert all(p.grad.isfinite().all() for p in scope["sdf"].parameters())


def test_without_pytorch():
    done = run(
        "import sys; sys.modules['torch'] = None\n"
        "import coopnet as cn\nimport coopnet.interop\n"
        "try:\n    cn.interop.torch\n"
        "except ImportError as error:\n    print(error)"
    )
    assert done.stdout == "coopnet.interop.torch needs PyTorch; run pip install torch.\n", done.stderr


def test_the_example_runs(backend, device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"Module": Module, "cn": cn, "torch": torch}
    for f in (Module, Module.field):
        for example in doctest.DocTestParser().get_examples(inspect.getdoc(f)):
            exec(example.source, scope)
    assert (tmp_path / "field.safetensors").exists()
    assert scope["module"].network.layers.get_submodule("0").weights.grad is not None


def test_a_learned_rate(device):
    """Masks are relaxed where the rate has a gradient, forward and backward; batches may change their size."""
    net = cn.Sequential(cn.Linear(2, 8), cn.SiLU(), cn.ConcreteDropout(0.3), cn.Linear(8, 3))
    module = Module(cn.NeuralField(None, net).build("llvm", seed=1)).to(device)
    x, key = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).to(device), cn.Key(3)

    def loss():
        return module(x, key).double().square().sum()

    loss().backward()
    tolerance = 1e-3 if device.type == "cpu" else 0.1
    for parameter in module.parameters():
        entry, values = parameter.data.view(-1)[:1], []
        before = entry.clone()
        for moved in (before + 1e-2, before - 1e-2):
            entry.copy_(moved)
            values.append(loss().item())
        entry.copy_(before)
        slope = (values[0] - values[1]) / 2e-2
        assert parameter.grad.view(-1)[0].item() == pytest.approx(slope, rel=tolerance, abs=tolerance)
    relaxed = module(x, key).detach()
    with torch.no_grad():  # the hard mask, as in evaluations by Dr.Jit
        hard = module(x, key)
    field = module.field()
    single = cn.backend.namespace("cuda" if device.type == "cuda" else "llvm").Float
    y = field([single(v.contiguous().cpu().numpy()) for v in x.T], key)
    expected = np.stack([v.numpy() for v in y], -1)
    np.testing.assert_allclose(hard.cpu().numpy(), expected, rtol=tolerance, atol=tolerance)
    assert (hard - relaxed).abs().max() > 0.1
    for rows in (7, 20, 50):
        module.train(rows != 20)
        module(x[:rows]).sum().backward()


def test_one_of_several_learned_rates(device):
    """The masks of a rate that is not trained are not relaxed."""
    layers = cn.ConcreteDropout(0.5, temperature=1.0), cn.Linear(2, 2), cn.ConcreteDropout(0.5, temperature=1.0)
    module = Module(cn.NeuralField(None, cn.Sequential(*layers, cn.Linear(2, 1))).build("llvm", seed=1)).to(device)
    dict(module.named_parameters())["network.layers.0.data"].requires_grad_(False)
    field = module.field()
    dr.enable_grad(field["network.layers.2.data"])
    single = cn.backend.namespace("cuda" if device.type == "cuda" else "llvm").Float
    expected = field([single([1.0] * 8)] * 2, cn.Key(1))[0].numpy()
    found = module(torch.ones(8, 2).to(device), cn.Key(1)).detach().cpu().numpy()[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5 if device.type == "cpu" else 1e-2, atol=1e-3)


@pytest.mark.parametrize("part", ["index", "step"])
def test_a_key_of_another_size(device, part):
    module = Module(smooth("cuda" if device.type == "cuda" else "llvm", dropout=0.2)).to(device)
    uint32 = cn.backend.namespace("cuda" if device.type == "cuda" else "llvm").UInt32
    with pytest.raises(ValueError, match=f"the {part} of key has 3 entries for 50 rows of x; 1 or 50"):
        module(torch.rand(50, 3, device=device), cn.Key(1, **{part: uint32([1, 2, 3])}))
