"""Weight gradients of networks inside symbolic loops and conditionals, by banks and by the built-in path."""

import contextlib
import warnings

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import all_close, evaluated

import coopnet as cn
from coopnet.engine import LoopBanks, banks, limits
from coopnet.jit import deferred

STEPS = 2


class Case:
    """A network over samples, summed over a few steps with other inputs and masks each.

    Smooth, because divergent warps round differently, and at a kink that changes a derivative.
    """

    def __init__(self, ns, backend, samples=3000, bias=True, dropout=0.3, half=False):
        self.ns, self.samples = ns, samples
        self.leaf = ns.Float16 if half or backend == "cuda" else ns.Float
        tensor = dr.tensor_t(self.leaf)
        net = cn.MLP(4, 2, width=4, depth=2, bias=bias, dropout=dropout, activation="tanh")
        self.net = drnn.pack(net.alloc(tensor, 4, dr.rng(3)), layout="training")
        self.weights = self.net["weights"]
        self.key = cn.Key(5, dr.arange(ns.UInt32, samples)) if dropout else None
        self.x = [dr.linspace(ns.Float, 0.1, 1 + 0.1 * k, samples) for k in range(4)]
        dr.eval(self.x)

    def __call__(self, i):
        x = [self.leaf(v * (1 + 0.25 * self.ns.Float(i))) for v in self.x]
        y = self.net(drnn.CoopVec(x), None if self.key is None else self.key.fold_in(i))
        return sum(self.ns.Float(v) for v in y) * (1 / 64)  # no subnormal half-precision numbers

    def loop(self, body=None, max_iterations=-1):
        def turn(i, total):
            return i + 1, total + (body or self)(i)

        start = (self.ns.UInt32(0), dr.zeros(self.ns.Float, self.samples))
        options = {"mode": "symbolic", "max_iterations": max_iterations}
        return dr.while_loop(start, lambda i, total: i < STEPS, turn, **options)[1]

    def attach(self):
        """Enable gradients of the weights and the input, which are zero then."""
        for v in (self.weights, *self.x):
            dr.disable_grad(v)
            dr.enable_grad(v)

    def gradients(self):
        return [v.numpy().astype(np.float64) for v in evaluated(dr.grad([self.weights, *self.x]))]

    def gradient(self, function, path="auto"):
        """Gradients of the sum by the weights and the input."""
        self.attach()
        with cn.gradient_path(path):
            dr.backward(dr.sum(function()))
        return self.gradients()

    def known(self, terms=None):
        """What :meth:`gradient` should be, term by term: of ``factor`` times the network at ``i``.

        Without ``terms``, the turns of the loop. All of them run one small kernel.
        """
        self.attach()
        for factor, i in terms or [(1, i) for i in range(STEPS)]:
            weight = self.ns.Float(factor) + dr.opaque(self.ns.Float, 0, self.samples)
            dr.backward(self(dr.opaque(self.ns.UInt32, i)) * weight)
        return self.gradients()

    def gradient_inside(self, body=None, path="auto"):
        """Gradient by the weights of the sum of the loop, each turn of which differentiates its own term."""

        def turn(i):
            with dr.isolate_grad():
                y = (body or self)(i)
                dr.backward(y)
            return dr.detach(y)

        dr.disable_grad(self.weights)
        dr.enable_grad(self.weights)
        with cn.gradient_path(path):
            dr.eval(self.loop(turn))
        return dr.grad(self.weights).numpy().astype(np.float64)


def agree(got, wanted, backend):
    all_close(got, wanted, 4e-3 if backend == "cuda" else 5e-5)


@pytest.mark.parametrize("path, max_iterations, dropout", [
    ("auto", -1, 0.3), ("auto", STEPS + 2, 0.0), ("banks", -1, 0.0), ("banks", STEPS + 2, 0.3),
])  # fmt: skip
def test_loop(ns, backend, path, max_iterations, dropout):
    deferred._cache.clear()
    case = Case(ns, backend, dropout=dropout, bias=dropout == 0)
    got = case.gradient(lambda: case.loop(max_iterations=max_iterations), path)
    agree(got, case.known(), backend)
    assert not deferred._cache  # nothing of a finished pass is kept


@pytest.mark.parametrize("path", ["auto", "banks"])
def test_conditional_in_a_loop_in_a_loop(ns, backend, path):
    case = Case(ns, backend)
    lane = dr.arange(ns.UInt32, case.samples)

    def maybe(i):
        return dr.if_stmt(
            (i, lane), lane % 2 == 0, lambda i, lane: case(i), lambda i, lane: ns.Float(0), mode="symbolic"
        )

    def twice(i):
        start = (ns.UInt32(0), i + 0, dr.zeros(ns.Float, case.samples))
        return dr.while_loop(
            start,
            lambda j, i, total: j < 2,
            lambda j, i, total: (j + 1, i, total + maybe(i)),
            mode="symbolic",
            max_iterations=-1,
        )[2]

    got = case.gradient(lambda: case.loop(twice), path)
    even = ns.Float(lane % 2 == 0)
    agree(got, case.known([(2 * even, i) for i in range(STEPS)]), backend)


@pytest.mark.parametrize("path", ["auto", "banks"])
def test_two_calls_of_one_network(ns, backend, path):
    case = Case(ns, backend, bias=False)
    got = case.gradient(lambda: case.loop(lambda i: case(i) + 2 * case(i + 1)), path)
    agree(got, case.known([(k + 1, i + k) for i in range(STEPS) for k in range(2)]), backend)


def forward_from(weights, y):
    dr.enqueue(dr.ADMode.Forward, weights)
    dr.traverse(dr.ADMode.Forward)
    return dr.grad(y)


@pytest.mark.parametrize("path", ["auto", "banks"])
@pytest.mark.parametrize("forward", [forward_from, lambda weights, y: dr.forward_to(y)], ids=["from", "to"])
def test_forward_mode(ns, backend, forward, path):
    """Forward mode that starts from the weights, or from what depends on them."""
    case = Case(ns, backend)
    tangent = dr.linspace(case.leaf, 0.5, 1, dr.width(case.weights))
    dr.eval(tangent)

    def run(function, path):
        dr.disable_grad(case.weights)
        dr.enable_grad(case.weights)
        with cn.gradient_path(path):
            y = function()
            dr.set_grad(case.weights, tangent)
            return forward(case.weights, y).numpy().astype(np.float64)

    known = sum(run(lambda i=i: case(dr.opaque(ns.UInt32, i)), "auto") for i in range(STEPS))
    agree([run(case.loop, path)], [known], backend)


@pytest.mark.parametrize("path", ["auto", "banks"])
def test_backward_inside_the_loop(ns, backend, path):
    """Nothing runs after the scope then, so banks cannot be summed: the one buffer takes the gradient."""
    case = Case(ns, backend, samples=500)

    agree([case.gradient_inside(path=path)], case.known()[:1], backend)


def test_backward_of_two_calls_inside_the_loop(ns, backend):
    """Each of them has to learn that nothing runs after the scope."""
    case = Case(ns, backend, samples=200, dropout=0)

    def both(i):
        return case(i) + case(i + 1)

    agree([case.gradient_inside(both)], case.gradient(lambda: case.loop(both))[:1], backend)


@pytest.mark.parametrize("path", ["auto", "banks"])
def test_frozen(ns, backend, path):
    case = Case(ns, backend)

    def step(net, weights, x, key):
        case.net, case.x, case.key = net, x, key
        dr.backward(dr.sum(case.loop()))
        return dr.grad(weights)

    frozen = dr.freeze(step)
    for seed in (1, 2, 3):
        key, results = cn.Key(dr.opaque(ns.UInt64, seed), dr.arange(ns.UInt32, case.samples)), []
        for function in (frozen, step):
            dr.disable_grad(case.weights)
            dr.enable_grad(case.weights)
            with cn.gradient_path(path):
                results.append(function(case.net, case.weights, case.x, key).numpy().astype(np.float64))
        agree(results[:1], results[1:], backend)
    assert frozen.n_recordings == 1


def test_large_batches_do_not_stall(ns, backend):
    """Positive activations and gradients of one sign, the worst case for sums in half precision."""
    case = Case(ns, backend, samples=2**18, bias=False, dropout=0, half=True)
    agree(case.gradient(case.loop)[:1], case.known()[:1], "cuda")


def test_dropped_passes_are_forgotten(ns, backend, monkeypatch):
    """A loop that is never differentiated leaves an entry behind, but not more than a few."""
    monkeypatch.setattr(deferred, "REMEMBERED", 3)
    case = Case(ns, backend, samples=200, dropout=0)
    for _ in range(6):
        dr.disable_grad(case.weights)
        dr.enable_grad(case.weights)
        with cn.gradient_path("banks"):
            case.loop()
    assert len(deferred._cache) <= 3
    deferred._cache.clear()


@pytest.mark.usefixtures("as_if_unwarned")
def test_stall_is_warned_of(ns, backend, set_limits):
    """Once, and not if sums are in single precision."""
    set_limits(STALL_SAMPLES=100)

    def run(case):
        def inside(i):
            with dr.isolate_grad():
                dr.backward(case(i))
            return ns.Float(0)

        dr.disable_grad(case.weights)
        dr.enable_grad(case.weights)
        case.loop(inside)

    single, half = Case(ns, backend, samples=500), Case(ns, backend, samples=500, half=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if backend == "llvm":
            run(single)
    with pytest.warns(RuntimeWarning, match="over 500 samples.*half precision"):
        run(half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(half)


@pytest.mark.parametrize("path", ["auto", "banks"])
def test_weights_that_are_computed(ns, backend, path):
    """The gradient goes on to what the weights were computed from."""
    case = Case(ns, backend)
    parameters = dr.detach(case.weights) * 0.5
    dr.eval(parameters)

    def run(function, path):
        own = type(parameters)(parameters)
        dr.enable_grad(own)
        case.net["weights"] = own * 2
        with cn.gradient_path(path):
            dr.backward(dr.sum(function()))
        return dr.grad(own).numpy().astype(np.float64)

    known = sum(run(lambda i=i: case(dr.opaque(ns.UInt32, i)), "auto") for i in range(STEPS))
    agree([run(case.loop, path)], [known], backend)


def in_a_row(ns, backend):
    """A case of two networks one after the other, which have buffers of different sizes; and the two."""
    case = Case(ns, backend, bias=False, dropout=0)
    widths = ((4, 16, 8), (8, 8, 2))
    nets = [cn.MLP(i, o, width=w, depth=1, bias=False, activation="tanh") for i, w, o in widths]
    nets = [drnn.pack(n.alloc(dr.tensor_t(case.leaf), i, dr.rng(k)), layout="training")
            for k, (n, (i, _, _)) in enumerate(zip(nets, widths, strict=True))]  # fmt: skip
    case.net = cn.Sequential(*nets)
    return case, nets


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("path", ["auto", "banks"])
def test_one_network_of_two_is_trained(ns, backend, path, frozen):
    """Two buffers of different sizes in one operation, of which one wants no gradient."""
    case, nets = in_a_row(ns, backend)
    buffers = [n["weights"] for n in nets]

    def gradient(function, path):
        for b in buffers:
            dr.disable_grad(b)
        dr.enable_grad(buffers[1 - frozen])
        with cn.gradient_path(path):
            dr.backward(dr.sum(function()))
        assert not dr.grad_enabled(buffers[frozen])
        return dr.grad(buffers[1 - frozen]).numpy().astype(np.float64)

    known = sum(gradient(lambda i=i: case(dr.opaque(ns.UInt32, i)), "auto") for i in range(STEPS))
    agree([gradient(case.loop, path)], [known], backend)


# ---- gradient_banks: derivatives taken in the loop, summed when the context is left ----------------------------------


def gradient_collected(case, path="banks"):
    """:meth:`Case.gradient_inside` within ``gradient_banks``; ``path="banks"`` has LLVM take several, too."""
    with cn.gradient_banks(case.net):
        case.gradient_inside(path=path)
    return dr.grad(case.weights).numpy().astype(np.float64)


@pytest.fixture
def filled(monkeypatch):
    """How many banks each network's derivative was spread over."""
    counts, fill = [], banks.BankOp._fill
    monkeypatch.setattr(banks.BankOp, "_fill", lambda self, sets, n, *a: counts.append(n) or fill(self, sets, n, *a))
    return counts


@pytest.mark.parametrize("count", [None, 1, 7])
@pytest.mark.parametrize("bias", [False, True])
def test_gradient_banks(ns, backend, filled, bias, count):
    samples = 3000 if count is None else 500  # a single half-precision sum of more would be too coarse
    case = Case(ns, backend, samples, bias=bias, dropout=0 if bias else 0.3)
    got = [None]

    def run():
        dr.disable_grad(case.weights)
        dr.enable_grad(case.weights)
        with cn.gradient_banks(case.net, banks=count), cn.gradient_path("banks"):
            dr.eval(case.loop(inside(case)))
            assert np.abs(dr.grad(case.weights).numpy()).max() == 0  # complete only when the context is left
        got[0] = dr.grad(case.weights).numpy().astype(np.float64)

    run()
    agree(got, case.known()[:1], backend)
    assert set(filled[:1]) == {count or banks.banks_in_scope(case.samples)}


def inside(case, weight=1.0):
    """A turn that differentiates its own term."""

    def turn(i):
        with dr.isolate_grad():
            y = case(i)
            dr.backward(y * weight)
        return dr.detach(y)

    return turn


def test_gradient_banks_have_no_effect_on_the_cpu(ns, backend, filled):
    case = Case(ns, backend)
    wanted = case.gradient_inside()
    got = gradient_collected(case, path="auto")
    agree([got], [wanted], backend)
    assert bool(filled) == (backend == "cuda")


@pytest.mark.parametrize("named", [0, 1, 2])
def test_gradient_banks_of_some_networks(ns, backend, filled, named):
    """``named`` of two networks; none stands for all."""
    case, other = Case(ns, backend, 500), Case(ns, backend, 500, dropout=0)
    both = [case.net, other.net]

    def body(i):
        return case(i) + 2 * other(i + 1)

    def turn(i):
        with dr.isolate_grad():
            dr.backward(body(i))
        return ns.Float(0)

    def run(collect):
        for c in (case, other):
            dr.disable_grad(c.weights)
            dr.enable_grad(c.weights)
        with cn.gradient_path("banks"), contextlib.ExitStack() as stack:
            if collect:
                stack.enter_context(cn.gradient_banks(*both[:named]))
                case.loop(turn)
            else:
                for i in range(STEPS):
                    dr.backward(body(dr.opaque(ns.UInt32, i)))
        return [c.weights.grad.numpy().astype(np.float64) for c in (case, other)]

    got = run(True)
    spread = {n for n in filled if n > 1}
    assert spread and len(filled) % (1 if named == 1 else 2) == 0
    agree(got, run(False), backend)


@pytest.mark.parametrize("named", [0, 1])
def test_gradient_banks_of_the_one_network_that_is_trained(ns, backend, filled, named):
    """What wants no gradient need not be named; what wants one and is not named keeps both out of the banks."""
    case, nets = in_a_row(ns, backend)
    case.weights = nets[named]["weights"]

    def gradient():
        with cn.gradient_banks(nets[named]):
            case.gradient_inside(path="banks")
        return dr.grad(case.weights).numpy().astype(np.float64)

    found = gradient()
    assert set(filled) == {banks.banks_in_scope(case.samples)}
    agree([found], case.known()[:1], backend)
    filled.clear()
    dr.enable_grad(nets[1 - named]["weights"])
    gradient()
    assert not filled


def test_gradient_banks_of_weights_that_are_computed(ns, backend):
    case = Case(ns, backend)
    parameters = dr.detach(case.weights) * 0.5
    dr.eval(parameters)
    found = []
    for inside_context in (True, False):
        own = type(parameters)(parameters)
        dr.enable_grad(own)
        case.net["weights"] = own * 2
        with cn.gradient_path("banks"):
            if inside_context:
                with cn.gradient_banks(case.net):
                    dr.eval(case.loop(inside(case)))
            else:
                for i in range(STEPS):
                    case.net["weights"] = own * 2  # the graph of a derivative that was taken is gone
                    dr.backward(case(dr.opaque(ns.UInt32, i)))
        found.append(dr.grad(own).numpy().astype(np.float64))
    agree(found[:1], found[1:], backend)


def test_gradient_banks_add_to_what_is_there(ns, backend):
    case = Case(ns, backend)
    dr.enable_grad(case.weights)
    for n in (1, 2):
        with cn.gradient_path("banks"), cn.gradient_banks(case.net):
            dr.eval(case.loop(inside(case)))
            dr.eval(case.loop(inside(case, 0.5)))
        got = dr.grad(case.weights).numpy().astype(np.float64)
        if n == 1:
            once = got
    agree([got], [2 * once], backend)
    agree([once], [1.5 * case.known()[0]], backend)


def test_gradient_banks_of_two_uses(ns, backend, monkeypatch):
    """Uses of one network in a body take sets of banks in turns, however many there are."""
    sets, once = set(), LoopBanks.once

    def seen(self, *args):
        found = once(self, *args)
        sets.add(id(found))
        return found

    monkeypatch.setattr(LoopBanks, "once", seen)
    case = Case(ns, backend)

    def both(i):
        return case(i) + 2 * case(i + 1) - 0.5 * case(i + 2)

    def turn(i):
        with dr.isolate_grad():
            dr.backward(both(i))
        return ns.Float(0)

    dr.enable_grad(case.weights)
    with cn.gradient_path("banks"), cn.gradient_banks(case.net):
        case.loop(turn)
        assert len(sets) == limits.BANK_SETS
    got = dr.grad(case.weights).numpy().astype(np.float64)
    terms = [(factor, i + k) for i in range(STEPS) for k, factor in enumerate((1, 2, -0.5))]
    agree([got], case.known(terms)[:1], backend)


def test_gradient_banks_frozen(ns, backend):
    case = Case(ns, backend)

    def step(net, weights, x, key):
        case.net, case.x, case.key = net, x, key
        with cn.gradient_path("banks"), cn.gradient_banks(net):
            case.loop(inside(case))
        return dr.grad(weights)

    frozen = dr.freeze(step)
    for seed in (1, 2, 3):
        key, results = cn.Key(dr.opaque(ns.UInt64, seed), dr.arange(ns.UInt32, case.samples)), []
        for function in (frozen, step):
            dr.disable_grad(case.weights)
            dr.enable_grad(case.weights)
            results.append(function(case.net, case.weights, case.x, key).numpy().astype(np.float64))
        agree(results[:1], results[1:], backend)
    assert frozen.n_recordings == 1

    with cn.gradient_path("banks"), cn.gradient_banks(case.net):
        outer = dr.freeze(lambda weights: case.loop(inside(case)))
        with pytest.raises(RuntimeError) as caught:
            outer(case.weights)
    assert any("enter it inside, around the loop" in str(e) for e in causes(caught.value))


def causes(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def test_a_body_that_raises_adds_nothing(ns, backend):
    case = Case(ns, backend)
    dr.enable_grad(case.weights)
    with pytest.raises(KeyError), cn.gradient_path("banks"), cn.gradient_banks(case.net):
        dr.eval(case.loop(inside(case)))
        raise KeyError
    assert np.abs(dr.grad(case.weights).numpy()).max() == 0
    agree([gradient_collected(case)], case.known()[:1], backend)


def test_gradient_banks_do_not_stall(ns, backend, recwarn):
    """Positive activations and gradients of one sign, the worst case for sums in half precision."""
    case = Case(ns, backend, samples=2**20, bias=False, dropout=0, half=True)
    agree([gradient_collected(case, path="auto")], case.known()[:1], "cuda")
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_gradient_banks_refuse_what_does_not_fit(ns, backend):
    net = Case(ns, backend).net
    for fields, count, error in [
        (("net",), None, TypeError),
        ((net, None), None, TypeError),
        ((net,), 0, ValueError),
        ((net,), 4097, ValueError),
        ((net,), 2.0, ValueError),
        ((net,), True, ValueError),
    ]:
        with pytest.raises(error, match=r"^gradient_banks: "):
            cn.gradient_banks(*fields, banks=count)

    def turn(i):
        with cn.gradient_banks(net):
            return i + 1

    with pytest.raises(RuntimeError) as caught:
        dr.while_loop((ns.UInt32(0),), lambda i: i < 2, lambda i: (turn(i),), mode="symbolic")
    assert any("enter the context outside" in str(e) for e in causes(caught.value))
