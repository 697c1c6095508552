"""Networks with dropout in loops, conditionals and virtual calls equal the same program written out.

Limits of Dr.Jit 1.5 that the programs below go around, each found with a script without coopnet:

- Tangents set before a symbolic ``if_stmt`` is traced count twice for its arguments: set them afterwards.
- Inside a symbolic scope, an inner symbolic loop or conditional loses the gradient of variables of the enclosing scope
  that it captures; pass them as state. (Weights, which come from outside of everything, keep theirs.)
- Reverse mode through a loop with a bound (``max_iterations=n``) inside a symbolic call aborts the LLVM compiler, and
  differentiable symbolic loops inside evaluated calls raise an error; in symbolic calls, loops with
  ``max_iterations=-1`` work.
- ``@dr.syntax`` makes every local variable that a loop reads part of its state, networks too, whose weights have
  another width than the lanes: ``dr.hint(..., exclude=[net])``, or a network that is no local variable.
"""

from __future__ import annotations

import contextlib

import drjit as dr
import numpy as np
import pytest
from support.arrays import all_close, evaluated
from support.networks import gradients, matrices

import coopnet as cn
from coopnet import reference
from coopnet.engine import loop_banks

N, SIZE, STEPS, P = 60, 3, 2, 0.25
rng = np.random.default_rng(5)
X = rng.uniform(-1, 1, (SIZE, N)).astype(np.float32)
DY = rng.standard_normal((SIZE, N)).astype(np.float32)
DX = rng.standard_normal((SIZE, N)).astype(np.float32)
IDS = (np.arange(N, dtype=np.uint32) * 7919 + 13) % 100_003  # identities of samples, as pixels in a tile have


class Setting:
    """Three networks of one signature and inputs on a backend; ``pair`` are the two that compile fast."""

    def __init__(self, backend, ns):
        self.backend, self.ns = backend, ns
        shapes = [("tanh", 1, True), ("silu", 1, False), ("sine", 1, False)]
        networks = [cn.MLP(SIZE, SIZE, width=4, depth=d, activation=a, bias=b, dropout=P) for a, d, b in shapes]
        self.fields = [cn.NeuralField(None, n).build(backend, seed=k) for k, n in enumerate(networks)]
        self.pair = self.fields[1:]
        self.lane = dr.arange(ns.UInt32, N)
        self.index = ns.UInt32(IDS)
        self.x, self.dx, self.dy = ([self.own(ns.Float(v)) for v in rows] for rows in (X, DX, DY))
        self.which = (self.lane * 7 + self.lane // 5) % 2

    @staticmethod
    def own(v):
        """In memory of Dr.Jit's: that of NumPy has this or that alignment, and kernels are compiled anew for each."""
        v = v + dr.opaque(type(v), 0)
        dr.eval(v)
        return v

    def buffers(self):
        return [f["network.weights"] for f in self.fields]

    def key(self, index=True):
        return cn.Key(2**33 + 5, self.index if index else None)

    def inputs(self):
        return [self.ns.Float(v) for v in self.x]

    def loss(self, y):
        return sum((a * a * w for a, w in zip(y, self.dy, strict=True)), self.ns.Float(0)) / N

    def reverse(self, run):
        """Loss of all samples, gradients of the weights and of the input."""
        x = self.inputs()
        for b in self.buffers():
            dr.disable_grad(b)
            dr.enable_grad(b)
        dr.enable_grad(x)
        loss = self.loss(run(x))
        value = dr.detach(loss)
        dr.backward(loss)
        value, grads = evaluated(value, dr.grad([*self.buffers(), *x]))
        return [value.numpy(), *(g.numpy().astype(np.float64) for g in grads)]

    def forward(self, run):
        """Derivative of the loss in one direction of input and weights."""
        x, buffers = self.inputs(), self.buffers()
        for b in buffers:
            dr.disable_grad(b)
        dr.enable_grad(x, buffers)
        loss = self.loss(run(x))
        for v, t in zip(x, self.dx, strict=True):
            dr.set_grad(v, t)
        for k, b in enumerate(buffers):
            tangent = np.random.default_rng(k).standard_normal(dr.width(b)).astype(np.float32)
            dr.set_grad(b, self.own(type(b)(self.ns.Float(tangent))))
        dr.enqueue(dr.ADMode.Forward, x, buffers)
        dr.traverse(dr.ADMode.Forward)
        return [dr.grad(loss).numpy()]

    def same(self, run, expected, exact=False, thorough=False):
        """``run`` and ``expected`` agree in both directions; ``exact``: to the bit where the order of sums is fixed.

        ``thorough``: forward mode as large batches take it, too.
        """
        known, moved = self.reverse(expected), self.forward(expected)
        if exact or self.backend == "llvm":
            self.agree(self.reverse(run), known, exact)
        if not exact:
            with in_banks():
                self.agree(self.reverse(run), known)
                if thorough:
                    self.agree(self.forward(run), moved)
        self.agree(self.forward(run), moved, exact)

    def agree(self, found, known, exact=False):
        for f, k in zip(found, known, strict=True):
            assert np.isfinite(k).all()
            self.close(f, k, exact)

    def close(self, found, known, exact=False):
        if exact and self.backend == "llvm":
            np.testing.assert_array_equal(found, known)
        else:
            size = max(np.abs(known).max(), 1e-6)
            np.testing.assert_allclose(found, known, rtol=0, atol=(3e-2 if self.backend == "cuda" else 2e-6) * size)

    def counter(self, i):
        return self.ns.UInt32(i)

    def zeros(self):
        return [dr.zeros(self.ns.Float, N) for _ in range(SIZE)]


@contextlib.contextmanager
def in_banks():
    """Weight gradients the way that large batches take on the GPU, in symbolic loops and conditionals, too."""
    with pytest.MonkeyPatch.context() as patch, cn.gradient_path("banks"):
        patch.setattr(loop_banks, "banks_in_scope", lambda samples, vectors=1: 2)
        yield


@pytest.fixture(scope="module")
def setting(backend, ns):
    return Setting(backend, ns)


def on_the_gpu(setting, kept):
    """Skip the rest there: OptiX takes seconds for a kernel, and the network's operations are the same."""
    if setting.backend == "cuda" and not kept:
        pytest.skip("compiled in a variant of this test")


def plus(a, b, factor=1.0):
    return [u + factor * v for u, v in zip(a, b, strict=True)]


def pick(conditions, values):
    """The values of the first condition that holds; the last ones have none."""
    result = values[-1]
    for c, v in zip(reversed(conditions), reversed(values[:-1]), strict=True):
        result = [dr.select(c, a, b) for a, b in zip(v, result, strict=True)]
    return result


# ---- Loops -------------------------------------------------------------------------------------------------

LOOPS = {
    "symbolic": {"mode": "symbolic", "max_iterations": -1},
    "bound": {"mode": "symbolic", "max_iterations": STEPS},
    "loose bound": {"mode": "symbolic", "max_iterations": STEPS + 2},
    "evaluated": {"mode": "evaluated"},
}


def accumulated(s, key, loop=None):
    """Sum over times of the network at one point; with no loop, written out."""
    f = s.fields[0]

    def run(x):
        if loop is None:
            total = s.zeros()
            for i in range(STEPS):
                total = plus(total, f(x, key.fold_in(s.counter(i))))
            return total
        return dr.while_loop(
            (s.counter(0), s.zeros()),
            lambda i, total: i < STEPS,
            lambda i, total: (i + 1, plus(total, f(x, key.fold_in(i)))),
            **loop,
        )[1]

    return run


def recurrence(s, key, loop=None, turns=STEPS):
    """``h <- h + f(h) / 4``, as often as each lane says."""
    f = s.fields[0]

    def run(h):
        if loop is None:
            for i in range(STEPS):
                moved = plus(h, f(h, key.fold_in(s.counter(i))), 0.25)
                h = moved if turns is STEPS else pick([i < turns], [moved, h])
            return h
        return dr.while_loop(
            (s.counter(0), h),
            lambda i, h: i < turns,
            lambda i, h: (i + 1, plus(h, f(h, key.fold_in(i)), 0.25)),
            **loop,
        )[1]

    return run


@pytest.mark.parametrize("kind", ["symbolic", "loose bound", "evaluated"])  # those below have an exact bound
def test_accumulating_loop(setting, kind):
    """By the numbers of lanes; the other loops have an index."""
    on_the_gpu(setting, kind in ("symbolic", "evaluated"))
    run, written_out = accumulated(setting, setting.key(False), LOOPS[kind]), accumulated(setting, setting.key(False))
    setting.same(run, written_out, kind == "evaluated", thorough=kind == "symbolic")


@pytest.mark.parametrize("kind", ["bound", "evaluated"])
def test_lanes_that_leave_early(setting, kind):
    on_the_gpu(setting, kind == "bound")
    key, turns = setting.key(), setting.lane % (STEPS + 1)
    run, expected = recurrence(setting, key, LOOPS[kind], turns), recurrence(setting, key, None, turns)
    if setting.backend == "cuda" and kind != "evaluated":
        # On the GPU, forward mode through a symbolic loop gives NaN to lanes that leave before others of their warp, by
        # Dr.Jit's own derivatives, too (gradient_path("builtin"), Dr.Jit 1.5.0, driver 580).
        setting.agree(setting.reverse(run), setting.reverse(expected))
    else:
        setting.same(run, expected)


def test_loops_without_a_backward_pass(setting):
    """What they leave behind is not taken for a later loop's, whose weights get the number of a freed AD variable."""
    s, key = setting, setting.key()
    run, known = accumulated(s, key, LOOPS["symbolic"]), s.reverse(accumulated(s, key))
    with in_banks():
        for _ in range(8):
            s.forward(run)
            s.agree(s.reverse(run), known)


@pytest.mark.parametrize("kind", ["bound", "evaluated"])
@pytest.mark.parametrize("index", [False, True])
def test_masks_in_a_loop_are_those_of_the_reference(setting, kind, index):
    """Backpropagation through the recurrence in float64, with the masks that the law says."""
    on_the_gpu(setting, index and kind == "bound")
    s, key = setting, setting.key(index)
    found = s.reverse(recurrence(s, key, LOOPS[kind]))
    weights, biases = matrices(s.fields[0])

    def mask(i):
        return reference.MLPDropout(P, seed=key.seed, index=IDS if index else None, step=i)

    h = [X.astype(np.float64)]
    for i in range(STEPS):
        h.append(h[-1] + reference.mlp(weights, h[-1], "tanh", biases=biases, dropout=mask(i)) / 4)
    tolerance = 3e-2 if s.backend == "cuda" else 1e-5
    expected = (DY * h[-1] ** 2).sum(axis=0) / N
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=tolerance * np.abs(expected).max())
    dh, dws, dbs = 2 * DY * h[-1] / N, [0.0] * len(weights), [0.0] * len(weights)
    for i in reversed(range(STEPS)):
        _, dx, dw, db = reference.mlp_vjp(weights, h[i], dh / 4, "tanh", biases=biases, dropout=mask(i))
        dh, dws, dbs = dh + dx, plus(dws, dw), plus(dbs, db)
    weight_gradients, bias_gradients = gradients(s.fields[0])
    all_close([*weight_gradients, *bias_gradients, np.stack(found[-SIZE:])], [*dws, *dbs, dh], tolerance)


# ---- Conditionals ------------------------------------------------------------------------------------------

modes = pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
# nothing can be evaluated in a symbolic loop
modes_in_loops = pytest.mark.parametrize(
    "loop, mode", [("bound", "symbolic"), ("evaluated", "symbolic"), ("evaluated",) * 2]
)


@modes
def test_conditional(setting, mode):
    """One network or another; lanes keep their numbers in a conditional."""
    on_the_gpu(setting, mode == "symbolic")
    s, key = setting, setting.key(False)
    condition = s.lane % 3 != 0

    def run(x):
        a, b = s.pair
        return dr.if_stmt((x, key), condition, lambda x, k: list(a(x, k)), lambda x, k: list(b(x, k)), mode=mode)

    written_out = lambda x: pick([condition], [f(x, key) for f in s.pair])  # noqa: E731
    s.same(run, written_out, mode == "evaluated", thorough=True)


@modes_in_loops
def test_conditional_in_a_loop(setting, loop, mode):
    on_the_gpu(setting, loop == "bound")
    s, key = setting, setting.key()

    def turn(i, h):
        y = dr.if_stmt(
            (h, i),
            (s.lane + i) % 3 != 0,
            lambda h, i: list(s.pair[0](h, key.fold_in(i))),
            lambda h, i: list(s.pair[1](h, key.fold_in(i))),
            mode=mode,
        )
        return i + 1, plus(h, y, 0.25)

    def written_out(h):
        for i in range(STEPS):
            ys = [f(h, key.fold_in(s.counter(i))) for f in s.pair]
            h = plus(h, pick([(s.lane + i) % 3 != 0], ys), 0.25)
        return h

    s.same(
        lambda x: dr.while_loop((s.counter(0), x), lambda i, h: i < STEPS, turn, **LOOPS[loop])[1],
        written_out,
        mode == "evaluated",
    )


# ---- Virtual calls -----------------------------------------------------------------------------------------


def switch_written_out(s, step=0):
    return lambda x: pick([s.which == 0], [f(x, cn.Key(9, s.index, step)) for f in s.pair])


@modes
def test_switch(setting, mode):
    s = setting

    def run(x):
        bodies = [lambda x, k, f=f: list(f(x, k)) for f in s.pair]
        return dr.switch(s.which, bodies, x, cn.Key(9, s.index, 4), mode=mode)

    s.same(run, switch_written_out(s, 4), mode == "evaluated", thorough=True)


@modes
def test_switch_of_one_network(setting, mode):
    """The callables differ in the key alone: one kernel, several masks, one buffer to accumulate into."""
    on_the_gpu(setting, mode == "symbolic")
    s = setting
    bodies = [lambda x, i, k=k: list(s.pair[0](x, cn.Key(k, i))) for k in range(2)]
    s.same(
        lambda x: dr.switch(s.which, bodies, x, s.index, mode=mode),
        lambda x: pick([s.which == 0], [s.pair[0](x, cn.Key(k, s.index)) for k in range(2)]),
        mode == "evaluated",
    )


@modes
def test_masked_lanes_of_a_switch(setting, mode):
    """Lanes that are switched off give zeros and no gradient."""
    on_the_gpu(setting, mode == "symbolic")
    s, active = setting, setting.lane % 4 != 1
    bodies = [lambda x, i, active, f=f: list(f(x, cn.Key(9, i))) for f in s.pair]
    y = switch_written_out(s)
    s.same(
        lambda x: dr.switch(s.which, bodies, x, s.index, active, mode=mode),
        lambda x: [dr.select(active, v, 0) for v in y(x)],
    )


@modes_in_loops
def test_switch_in_a_loop(setting, loop, mode):
    on_the_gpu(setting, loop == "bound")
    s = setting
    bodies = [lambda h, index, i, f=f: list(f(h, cn.Key(9, index, i))) for f in s.pair]

    def turn(i, h):
        return i + 1, plus(h, dr.switch((s.which + i) % 2, bodies, h, s.index, i, mode=mode), 0.25)

    def written_out(h):
        for i in range(STEPS):
            ys = [f(h, cn.Key(9, s.index, s.counter(i))) for f in s.pair]
            h = plus(h, pick([(s.which + i) % 2 == 0], ys), 0.25)
        return h

    s.same(
        lambda x: dr.while_loop((s.counter(0), x), lambda i, h: i < STEPS, turn, **LOOPS[loop])[1],
        written_out,
        mode == "evaluated",
    )


def sum_over_time(s, f, x, index):
    """A loop for use inside other symbolic operations: all it reads of them is its state."""
    return dr.while_loop(
        (s.counter(0), [v * 0 for v in x], x, index),
        lambda i, *_: i < STEPS,
        lambda i, total, x, index: (i + 1, plus(total, f(x, cn.Key(9, index, i))), x, index),
        mode="symbolic",
        max_iterations=-1,
    )[1]


def times_written_out(s, f, x, index):
    total = s.zeros()
    for i in range(STEPS):
        total = plus(total, f(x, cn.Key(9, index, s.counter(i))))
    return total


@pytest.mark.parametrize("outer", ["if", "switch", "loop"])
def test_loop_inside(setting, outer):
    """A loop over a network inside a conditional, a call, another loop."""
    s, a, b = setting, *setting.pair

    def run(x):
        if outer == "if":
            branches = [lambda x, k, f=f: sum_over_time(s, f, x, k) for f in (a, b)]
            return dr.if_stmt((x, s.index), s.which == 0, *branches, mode="symbolic")
        if outer == "switch":
            bodies = [lambda x, k, f=f: sum_over_time(s, f, x, k) for f in (a, b)]
            return dr.switch(s.which, bodies, x, s.index, mode="symbolic")
        return dr.while_loop(
            (s.counter(0), s.zeros(), x),
            lambda j, total, x: j < 2,
            lambda j, total, x: (j + 1, plus(total, sum_over_time(s, a, x, s.index + j)), x),
            mode="symbolic",
            max_iterations=-1,
        )[1]

    def written_out(x):
        if outer == "loop":
            return plus(*(times_written_out(s, a, x, s.index + j) for j in range(2)))
        return pick([s.which == 0], [times_written_out(s, f, x, s.index) for f in (a, b)])

    s.same(run, written_out)


@modes
def test_dispatch(setting, backend, mode):
    """Method calls on instances; Mitsuba's are the only ones that Python can make."""
    mi = pytest.importorskip("mitsuba")

    s = setting
    mi.set_variant(f"{backend}_ad_rgb")

    class Texture(mi.Texture):
        def __init__(self, props):
            mi.Texture.__init__(self, props)
            self.field = s.pair[props["number"]]

    mi.register_texture("coopnet_test_dispatch", Texture)
    textures = [mi.load_dict({"type": "coopnet_test_dispatch", "number": k}) for k in range(2)]
    pointers = dr.select(s.which == 0, *(mi.TexturePtr(t) for t in textures))

    def run(x, key=None):
        key = cn.Key(9, s.index) if key is None else key
        return dr.dispatch(pointers, lambda self, x, k: list(self.field(x, k)), x, key, mode=mode)

    s.same(run, switch_written_out(s), mode == "evaluated")
    with pytest.raises(RuntimeError) as caught:
        run(s.inputs(), cn.Key(9))
    assert says_no_lane_number(caught.value)


def says_no_lane_number(error):
    while error is not None and not isinstance(error, ValueError):
        error = error.__cause__ or error.__context__
    return error is not None and "Key: index is None inside a virtual call" in str(error)


@pytest.mark.parametrize("differentiate", [False, True])
@modes
def test_calls_need_an_index(setting, mode, differentiate):
    """A mask by the number of a lane in a call would be another one; all is well after the error."""
    s = setting
    x = s.inputs()
    if differentiate:
        dr.enable_grad(x)
    else:
        for b in s.buffers():
            dr.disable_grad(b)
    bodies = [lambda x, f=f: list(f(x, cn.Key(9))) for f in s.pair]
    with pytest.raises(RuntimeError) as caught:
        dr.switch(s.which, bodies, x, mode=mode)
    assert says_no_lane_number(caught.value)
    found = s.fields[0](s.inputs(), cn.Key(9)).numpy()
    expected = s.fields[0](s.inputs(), cn.Key(9, s.lane)).numpy()
    np.testing.assert_array_equal(found, expected)
    # without dropout there is nothing to number
    dr.eval(dr.switch(s.which, [lambda x, f=f: list(f(x)) for f in s.pair], s.inputs(), mode=mode))


# ---- @dr.syntax --------------------------------------------------------------------------------------------


@dr.syntax
def syntax_recurrence(s, key, h, mode, bound):
    field = s.fields[0]
    i = s.counter(0)
    while dr.hint(i < STEPS, mode=mode, max_iterations=bound, exclude=[s, field]):
        h = plus(h, field(h, key.fold_in(i)), 0.25)
        i += 1
    return h


@dr.syntax
def syntax_nested(s, key, h, mode, bound):
    """A network in a branch of a loop, and in the other branch none."""
    i = s.counter(0)
    while dr.hint(i < STEPS, mode=mode, max_iterations=bound, exclude=[s]):
        if dr.hint((s.lane + i) % 2 == 0, mode=mode, exclude=[s]):
            h = plus(h, s.fields[1](h, key.fold_in(i)), 0.25)
        else:
            h = plus(h, h, 0.5)
        i += 1
    return h


def nested_written_out(s, key, h):
    for i in range(STEPS):
        moved = plus(h, s.fields[1](h, key.fold_in(s.counter(i))), 0.25)
        h = pick([(s.lane + i) % 2 == 0], [moved, plus(h, h, 0.5)])
    return h


@modes
@pytest.mark.parametrize("program", ["loop", "nested"])
def test_syntax(setting, program, mode):
    on_the_gpu(setting, mode == "symbolic")
    s, key = setting, setting.key(program == "nested")
    bound = STEPS if mode == "symbolic" else -1
    run, written_out = {
        "loop": (lambda x: syntax_recurrence(s, key, x, mode, bound), recurrence(s, key)),
        "nested": (
            lambda x: syntax_nested(s, key, x, mode, bound),
            lambda x: nested_written_out(s, key, x),
        ),
    }[program]
    s.same(run, written_out, mode == "evaluated")


# ---- Gradients inside loops --------------------------------------------------------------------------------


@modes
@pytest.mark.parametrize("suspended", [False, True])
def test_backward_inside_a_loop(setting, mode, suspended):
    """As in path replay backpropagation: every turn differentiates a loss of its own, and gradients add up."""
    on_the_gpu(setting, mode == "symbolic" and not suspended)
    s, key, f = setting, setting.key(), setting.fields[0]

    def step(i, x):
        with dr.resume_grad():
            x = [dr.detach(v) * 1 for v in x]
            dr.enable_grad(x)
            loss = s.loss(f(x, key.fold_in(i)))
            dr.backward(loss)
            return dr.detach(loss), [dr.grad(v) for v in x]

    def turn(i, total, x, dx):
        loss, grad = step(i, x)
        return i + 1, total + loss, x, plus(dx, grad)

    def prepare():
        dr.disable_grad(f["network.weights"])
        dr.enable_grad(f["network.weights"])
        return s.inputs(), dr.zeros(s.ns.Float, N), s.zeros()

    def values(total, dx):
        total, grad, dx = evaluated(total, f["network.weights"].grad, dx)
        return [total.numpy(), grad.numpy().astype(np.float64), *(v.numpy() for v in dx)]

    x, total, dx = prepare()
    for i in range(STEPS):
        _, total, _, dx = turn(s.counter(i), total, x, dx)
    expected = values(total, dx)
    x, total, dx = prepare()
    with dr.suspend_grad(when=suspended):
        _, total, _, dx = dr.while_loop((s.counter(0), total, x, dx), lambda i, *_: i < STEPS, turn, mode=mode)
    for found, known in zip(values(total, dx), expected, strict=True):
        assert np.abs(known).max() > 0
        s.close(found, known, mode == "evaluated")


@modes
def test_backward_inside_a_loop_reaches_captured_inputs(setting, mode):
    on_the_gpu(setting, mode == "symbolic")
    s, key, f = setting, setting.key(), setting.fields[0]
    found = []
    for loop in (False, True):
        x = s.inputs()
        dr.enable_grad(x)
        dr.disable_grad(f["network.weights"])

        def turn(i, total, x=x):
            loss = s.loss(f(x, key.fold_in(i)))
            dr.backward(loss)
            return i + 1, total + dr.detach(loss)

        state = s.counter(0), dr.zeros(s.ns.Float, N)
        if loop:
            state = dr.while_loop(state, lambda i, _: i < STEPS, turn, mode=mode)
        else:
            for i in range(STEPS):
                state = turn(s.counter(i), state[1])
        found.append([v.numpy() for v in evaluated([state[1], *dr.grad(x)])])
    for a, b in zip(*found, strict=True):
        assert np.abs(a).max() > 0
        s.close(b, a)


def test_first_derivative_inside_a_loop(setting):
    """Forward derivatives of the network by its input, in the body of a loop, as sphere tracing takes them."""
    s, key, f = setting, setting.key(), setting.fields[0]
    for b in s.buffers():
        dr.disable_grad(b)

    def slope(x, i):
        x = [dr.detach(v) * 1 for v in x]
        dr.enable_grad(x[0])
        y = f(x, key.fold_in(i))
        dr.set_grad(x[0], 1)
        return [dr.detach(v) for v in dr.forward_to(list(y))]

    def turn(i, h):
        return i + 1, plus(h, slope(h, i), 0.25)

    expected = s.inputs()
    for i in range(STEPS):
        expected = plus(expected, slope(expected, s.counter(i)), 0.25)
    found = dr.while_loop((s.counter(0), s.inputs()), lambda i, h: i < STEPS, turn, mode="symbolic")[1]
    for a, b in zip(*evaluated(found, expected), strict=True):
        s.close(a.numpy(), b.numpy())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("path", ["auto", "spill", "store", "banks"])
@pytest.mark.parametrize("depth", [0, 2])
def test_networks_as_the_state_of_evaluated_loops(ns, backend, bias, path, depth):
    """Each view of the packed weights is a variable of the loop there: their gradients must not count several times."""
    net = cn.MLP(2, 1, width=8, depth=depth, bias=bias, activation="silu")
    field = cn.NeuralField(None, net).build(backend, seed=1)
    p = [dr.linspace(ns.Float, 0, 1, 100), ns.Float(0.3)]
    dr.eval(p)

    def loop(f):
        start = ns.UInt32(0), f, dr.zeros(ns.Float, 100)
        return dr.while_loop(start, lambda i, f, y: i < 3, lambda i, f, y: (i + 1, f, y + f(p)[0]), mode="evaluated")[2]

    found = []
    for function in (loop, lambda f: f(p)[0] + f(p)[0] + f(p)[0]):
        dr.enable_grad(field["network.weights"])
        dr.clear_grad(field["network.weights"])
        with cn.gradient_path(path):
            dr.backward(dr.mean(function(field)))
        found.append(field.gradient("layers.0.weights"))
    assert np.abs(found[1]).max() > 0.01
    np.testing.assert_allclose(
        *found, rtol=2e-3 if backend == "cuda" else 1e-5, atol=2e-3 if backend == "cuda" else 1e-6
    )
