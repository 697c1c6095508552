"""The inside of Dr.Jit's optimizers is what ``coopnet.jit.optimizers`` takes it for."""

from __future__ import annotations

import drjit as dr
import drjit.opt as dropt
import numpy as np
import pytest

import coopnet as cn
from coopnet.jit import optimizers
from coopnet.jit.optimizers import Extension

OPTIMIZERS = {
    "SGD": lambda **options: dropt.SGD(**{"lr": 0.1, "momentum": 0.9} | options),
    "RMSProp": lambda **options: dropt.RMSProp(**{"lr": 0.1} | options),
    "Adam": lambda **options: dropt.Adam(**{"lr": 0.1} | options),
    "AMSGrad": lambda **options: dropt.Adam(**{"lr": 0.1, "amsgrad": True} | options),
    "AdamW": lambda **options: dropt.AdamW(**{"lr": 0.1, "weight_decay": 0.5} | options),
}


def two(ns):
    return {"a": ns.Float(1, -2), "b": ns.TensorXf(ns.Float(3, 4, 5), (3, 1))}


def moved(optimizer, steps=3):
    """Parameters after ``steps`` with the gradient 1, 2, 3 ..."""
    for _ in range(steps):
        for value in optimizer.values():
            flat = type(value.array)
            grad = dr.arange(flat, dr.width(value.array)) + 1
            dr.set_grad(value, type(value)(grad, value.shape) if dr.is_tensor_v(value) else grad)
        optimizer.step()
    return {name: np.array(value.numpy()).ravel() for name, value in optimizer.items()}


def close(one, other):
    return one.keys() == other.keys() and all(np.allclose(one[k], other[k], rtol=1e-5) for k in one)


# ---- what Dr.Jit does -------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_a_tuple_of_four(ns, name):
    """(value, promoted?, rate or None, memory), whose entries are looked up by place."""
    optimizer = OPTIMIZERS[name](params={"half": ns.Float16(1, 2), "single": ns.Float(3)})
    for key, promoted in (("half", True), ("single", False)):
        value, second, rate, memory = optimizer.state[key]
        assert type(value) is ns.Float and dr.grad_enabled(value)
        assert second is promoted and rate is None and memory is not None
    optimizer.set_learning_rate({"single": 2.0})
    assert optimizer.state["single"][2] == 2.0 == optimizer.learning_rate("single")
    # only by its name is a promoted parameter rounded
    assert type(optimizer["half"]) is ns.Float16 and type(dict(optimizer.items())["half"]) is ns.Float


def test_adam_counts_in_the_first_entry_of_its_memory(ns):
    optimizer = dropt.Adam(lr=0.1, params=two(ns))
    moved(optimizer)
    assert [memory[0].numpy().tolist() for memory in optimizers.memories(optimizer).values()] == [[3], [3]]


def test_rates_that_are_arrays_are_multiplied_in_place(ns):
    """The fault that ``own_rates`` is there for. If this fails, Dr.Jit is well again and that can go."""
    rate = ns.Float(2)
    dropt._LRCache().product(ns.Float, rate, ns.Float(-3))
    assert rate.numpy().tolist() == [-6]
    optimizer = dropt.Adam(lr=ns.Float(0.1), params=two(ns))
    assert not close(moved(optimizer, 1), moved(dropt.Adam(lr=0.1, params=two(ns)), 1))


@pytest.mark.parametrize("kind", [cn.training.Adam, cn.training.SGD])
def test_ours_are_not(ns, kind):
    values = {name: ns.Float(1, 2) for name in "abc"}
    opt = kind(ns.Float(1e-2), values)
    for value in opt.values():
        dr.set_grad(value, ns.Float(1, -1))
    opt.step()
    for value in opt.values():
        np.testing.assert_allclose(value.numpy(), [0.99, 2.01], rtol=1e-4)
    assert opt.lr.numpy() == np.float32(1e-2)


def test_adamw_with_such_a_rate_makes_weights_grow(ns):
    ends = []
    for rate in (0.1, ns.Float(0.1)):
        optimizer = dropt.AdamW(lr=rate, weight_decay=0.5, params={"a": ns.Float(2)})
        dr.set_grad(dict(optimizer.items())["a"], 0)
        optimizer.step()
        ends.append(optimizer["a"].numpy()[0])
    assert ends[0] < 2 < ends[1]


# ---- what is made of it -----------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_own_rates(ns, name):
    """Steps with an array are those with a number, for every parameter, and leave rates as they were."""
    one, other = OPTIMIZERS[name](params=two(ns)), OPTIMIZERS[name](params=two(ns), lr=ns.Float(0.1))
    other.set_learning_rate({"b": ns.Float(0.3)})
    one.set_learning_rate({"b": 0.3})
    decay = optimizers.decay_rate(one)
    assert decay == (0.5 if name == "AdamW" else 0)
    if decay:
        one.weight_decay = 0.0
    for _ in range(3):
        expected = moved(one, 1)
        with optimizers.own_rates(other, {}) as rates:
            found = moved(other, 1)
        assert close(expected, found)
        assert {name: rate.numpy().tolist() for name, rate in rates.items()} == {
            "a": pytest.approx([0.1]), "b": pytest.approx([0.3])
        }  # fmt: skip
    assert other.lr.numpy()[0] == pytest.approx(0.1) and other.learning_rate("a") is None
    assert other.learning_rate("b").numpy()[0] == pytest.approx(0.3) and optimizers.decay_rate(other) == decay


def test_own_rates_times_factors(ns):
    one, other = dropt.Adam(lr=0.1, params=two(ns)), dropt.Adam(lr=ns.Float(0.1), params=two(ns))
    one.set_learning_rate({"a": 0.05})
    with optimizers.own_rates(other, {"a": ns.Float(0.5), "gone": ns.Float(7)}) as rates:
        assert close(moved(one, 1), moved(other, 1))
    assert rates.keys() == {"a", "b"} and rates["a"].numpy()[0] == pytest.approx(0.05)


def test_own_rates_after_an_error(ns):
    optimizer = OPTIMIZERS["AdamW"](params=two(ns), lr=ns.Float(0.1))
    with pytest.raises(KeyError), optimizers.own_rates(optimizer, {}):
        raise KeyError
    assert optimizers.decay_rate(optimizer) == 0.5 and optimizer.learning_rate("a") is None


def test_values(ns):
    """Read and replaced as they are kept, and nothing else is."""
    optimizer = dropt.Adam(lr=0.1, params={"half": ns.Float16(1, 2), "single": ns.Float(3)})
    moved(optimizer)
    kept, before = optimizers.snapshot(optimizer), optimizers.memories(optimizer)
    assert [type(v) for v in kept.values()] == [ns.Float] * 2 and not any(map(dr.grad_enabled, kept.values()))
    numbers = {name: np.array(value.numpy()) for name, value in kept.items()}
    moved(optimizer)
    optimizers.set_values(optimizer, kept)
    assert all(map(dr.grad_enabled, optimizers.values(optimizer).values()))
    assert close({name: v.numpy() for name, v in optimizers.values(optimizer).items()}, numbers)
    after = optimizers.memories(optimizer)
    assert all(after[name][0].numpy()[0] == 6 and before[name][0].numpy()[0] == 3 for name in after)
    assert optimizer.state["half"][1] and not optimizer.state["single"][1]


def test_state(ns):
    one, other = dropt.Adam(lr=0.1, params=two(ns)), dropt.Adam(lr=0.1)
    moved(one)
    optimizers.set_state(other, {k: (dr.detach(v), *rest) for k, (v, *rest) in one.state.items()})
    assert close(moved(one), moved(other))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_adam_correction(ns, steps):
    optimizer = dropt.Adam(lr=0.1, params=two(ns))
    moved(optimizer, steps - 1)
    found = optimizers.adam_correction(optimizer, ns.Float, optimizers.memories(optimizer)["a"])
    assert type(found) is ns.Float
    assert found.numpy()[0] == pytest.approx(np.sqrt(1 - 0.999**steps) / (1 - 0.9**steps), rel=1e-6)


def test_a_power_of_doubles_is_infinite_where_it_underflows(ns):
    assert (ns.Float64(1 / 256) ** dr.opaque(ns.UInt32, 128)).numpy()[0] == -np.inf
    assert (ns.Float64(1 / 256) ** dr.opaque(ns.UInt32, 129)).numpy()[0] == 0


@pytest.mark.parametrize("kind", [cn.training.Adam, dropt.Adam, dropt.AdamW])
def test_long_runs(ns, backend, kind):
    """Past the step whose correction would be infinite, number 128 here and 70,589 for a beta_2 of 0.99."""
    field = cn.NeuralField(None, cn.MLP(1, 1, width=8, depth=1)).build(backend, seed=1)
    optimizer = kind(lr=1e-3, beta_1=0.5, beta_2=1 / 256)
    result = cn.fit(
        field, lambda key: (cn.uniform(1, key, ns.Float, 64),) * 2, 132, optimizer=optimizer, progress=False
    )
    assert result.steps == 132 and result.losses[-1] < result.losses[0]
    counts = [memory[0].numpy()[0] for memory in optimizers.memories(optimizer).values()]
    assert counts == [65] * len(counts)  # 0.5^64 changes nothing any more


def test_a_state_from_just_before(ns):
    """As a checkpoint may have it."""
    optimizer = cn.training.Adam(lr=0.1, beta_1=0.5, beta_2=1 / 256, params=two(ns))
    moved(optimizer, 1)
    state = {k: (*rest, (ns.UInt32(127), *memory[1:])) for k, (*rest, memory) in optimizer.state.items()}
    optimizers.set_state(optimizer, state)
    assert all(np.isfinite(v).all() for v in moved(optimizer, 1).values())


class Counting(Extension, dropt.Adam):
    """Remembers how often it has moved, and takes every second gradient for 0."""

    _remembers = True

    def _begin(self, value):
        return (dr.uint32_array_t(type(value))(0), value * 0)

    def _move(self, value, grad, own, memory, step):
        count, last = own
        new, memory = step(dr.select(count % 2 == 1, 0, grad))
        return new, (count + 1, last + grad), memory


class Named(Extension, dropt.SGD):
    """Moves ``a`` and lets it decay, and leaves the others alone."""

    def _adjust(self, name, value, grad, lr, memory, step):
        new, memory = step(grad, lr)
        return (new - lr * value, memory) if name == "a" else (value, memory)


def test_extensions(ns):
    optimizer, plain = Counting(lr=0.1, params=two(ns)), dropt.Adam(lr=0.1, params=two(ns))
    assert close(moved(optimizer, 1), moved(plain, 1)) and not close(moved(optimizer, 1), moved(plain, 1))
    (count, last), (t, *_) = optimizers.memories(optimizer)["a"]
    assert count.numpy()[0] == t.numpy()[0] == 2 and last.numpy().tolist() == [2, 4]
    before = {name: np.array(value.numpy()) for name, value in optimizers.values(optimizer).items()}
    for value in optimizer.values():
        dr.set_grad(value, 1)
    optimizer.step(active=ns.Bool(False))
    (count, _), _ = optimizers.memories(optimizer)["a"]
    assert count.numpy()[0] == 2  # a masked step is not remembered either
    assert close({name: v.numpy() for name, v in optimizers.values(optimizer).items()}, before)
    optimizer.reset("a")
    assert optimizers.memories(optimizer)["a"][0][0].numpy()[0] == 0


def test_extensions_know_names(ns):
    """A step visits parameters in the order in which they came, whatever became of them since."""
    optimizer = Named(lr=0.5, params={"c": ns.Float(1), "b": ns.Float(3), "a": ns.Float(4), "d": ns.Float(5)})
    del optimizer["c"]
    optimizer["b"] = ns.Float(6, 7)
    for value in optimizer.values():
        dr.set_grad(value, 2)
    optimizer.step()
    assert {name: value.numpy().tolist() for name, value in optimizer.items()} == {
        "b": [6, 7], "a": [4 - 0.5 * 2 - 0.5 * 4], "d": [5]
    }  # fmt: skip


def test_memories_of_ones_own(ns):
    class Steps(Extension, optimizers.NewOptimizer):
        def _first_memory(self, name, value):
            return {name: dr.width(value)}, value * 0

        def _adjust(self, name, value, grad, lr, memory, step):
            return value - lr * grad, (memory[0], memory[1] + 1)

    optimizer = Steps(lr=0.5, params=two(ns))
    assert moved(optimizer, 2)["b"].tolist() == [2, 2, 2]
    (names, steps), _ = optimizers.memories(optimizer)["b"], optimizers.memories(optimizer)["a"]
    assert names == {"b": 3} and steps.numpy().tolist() == [2, 2, 2]
    optimizer.reset("b")
    assert optimizers.memories(optimizer)["b"][1].numpy().tolist() == [0, 0, 0]
    with pytest.raises(NotImplementedError):
        optimizers.NewOptimizer(lr=0.1, params=two(ns))


@pytest.mark.parametrize("remembers", [False, True])
def test_extensions_that_do_not_say_what(ns, remembers):
    class Empty(Extension, dropt.SGD):
        pass

    Empty._remembers = remembers
    if remembers:
        with pytest.raises(NotImplementedError):
            Empty(lr=0.1, params=two(ns))
    else:
        assert close(moved(Empty(lr=0.1, params=two(ns))), moved(dropt.SGD(lr=0.1, params=two(ns))))
