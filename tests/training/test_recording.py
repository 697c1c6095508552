"""What cannot be recorded: the error says why, and not that somebody else has."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.training import tiny_batch, tiny_field

import coopnet as cn
from coopnet.training.interrupts import caused_by_interrupt
from coopnet.training.recording import reasons

CURE = r"cannot read values of arrays.* look at them outside, as in print\(batch\(coopnet\.Key\(0\)\)\)\.$"


@pytest.mark.parametrize("how", [print, lambda x: x[0]], ids=["print", "entry"])
def test_values_that_are_read(backend, ns, how, capsys):
    draw = tiny_batch(ns)

    def batch(key):
        drawn = draw(key)
        how(drawn[0][0])
        return drawn

    words = rf"fit: a step could not be recorded: drjit.* {CURE}"
    with pytest.raises(RuntimeError, match=f"^{words}"):
        cn.fit(tiny_field(backend), batch, 3, progress=False)
    fields = [tiny_field(backend) for _ in range(2)]
    with pytest.raises(RuntimeError, match=f"^fit_many: jobs 0 to 1: {words}"):
        cn.fit_many(fields, lambda key, job: batch(key), 3, together=2, progress=False)
    assert "see above" not in capsys.readouterr().err
    cn.fit(tiny_field(backend), draw, 3, progress=False)  # Dr.Jit is well


@pytest.mark.parametrize(
    "read", [lambda x: x.numpy(), np.asarray, lambda x: np.mean(x)], ids=["numpy", "asarray", "mean"]
)
def test_values_that_numpy_reads(backend, ns, read):
    """Dr.Jit would record them as constants."""
    draw = tiny_batch(ns)

    def batch(key):
        (x, *rest), (t,) = draw(key)
        return [x, *rest], [t + float(np.mean(read(x)))]

    words = rf"batch reads values of an array by (numpy|__array__)\(\), as NumPy and other libraries do\. .*{CURE}"
    with pytest.raises(RuntimeError, match=f"^fit: {words}"):
        cn.fit(tiny_field(backend), batch, 3, progress=False)
    for name, options in (
        ("loss", {"loss": lambda y, t: dr.square(y[0] - t[0]) * float(np.mean(read(y[0])))}),
        ("penalty", {"penalty": lambda field: dr.mean(ns.Float(1)) * float(np.mean(read(field["network.weights"])))}),
    ):
        with pytest.raises(RuntimeError, match=f"^fit: {name} reads values of an array"):
            cn.fit(tiny_field(backend), draw, 3, progress=False, **options)
    cn.fit(tiny_field(backend), draw, 3, progress=False)  # Dr.Jit is well


def test_values_that_are_read_once(backend, ns):
    """For the first batch, and kept."""
    draw, kept = tiny_batch(ns), []
    data = dr.arange(ns.Float, 8)

    def batch(key):
        if not kept:
            kept.append(float(data.numpy().max()))
        coordinates, (t,) = draw(key)
        return coordinates, [t * kept[0]]

    assert len(cn.fit(tiny_field(backend), batch, 3, progress=False).losses) == 3


NUMBERS = np.arange(8, dtype=np.float32) / 8
IMPORTS = {
    "flat": lambda ns, x: ns.Float(NUMBERS),
    "operand": lambda ns, x: x + NUMBERS,
    "selected": lambda ns, x: dr.select(x > 0.5, NUMBERS, x),
    "integers": lambda ns, x: ns.Float(ns.UInt32(np.arange(8))),
    "nested": lambda ns, x: ns.Array3f(np.ones((3, 8), np.float32)).x,
    "tensor": lambda ns, x: ns.TensorXf(NUMBERS).array,
    "texture": lambda ns, x: ns.Texture1f(ns.TensorXf(NUMBERS[:, None])).eval(ns.Array1f(x))[0],
    "memory": lambda ns, x: ns.Float(memoryview(NUMBERS)),
}


@pytest.mark.parametrize("kind", IMPORTS)
def test_arrays_of_numpy(backend, ns, kind):
    """Dr.Jit ends the process when it records one of them on the CPU, so the error must come before."""

    def batch(key):
        x = cn.uniform(2, key, ns.Float, 8)
        return x, [IMPORTS[kind](ns, x[0])]

    words = "fit: batch makes a Dr.Jit array from an array of NumPy or another library, which cannot be recorded; do so"
    with pytest.raises(RuntimeError, match="^" + (words if backend == "llvm" else "fit: ")):
        cn.fit(tiny_field(backend), batch, 3, progress=False)
    cn.fit(tiny_field(backend), tiny_batch(ns), 3, progress=False)  # Dr.Jit is well


def test_arrays_of_numpy_elsewhere(llvm):
    draw = tiny_batch(llvm)

    def objective(field, drawn, key):
        return dr.square(field(drawn[0])[0] - dr.mean(llvm.Float(NUMBERS)))

    for name, options in (
        ("objective", {"objective": objective}),
        ("penalty", {"penalty": lambda field: dr.mean(llvm.Float(NUMBERS))}),
        ("loss", {"loss": lambda y, t: dr.square(y[0] - dr.mean(llvm.Float(NUMBERS)))}),
    ):
        with pytest.raises(RuntimeError, match=f"^fit: {name} makes a Dr.Jit array from an array of NumPy"):
            cn.fit(tiny_field("llvm"), draw, 3, progress=False, **options)


def test_an_array_of_numpy_that_is_kept(backend, ns):
    """Made in the first batch, and found from then on."""
    kept = {}

    def batch(key):
        x = cn.uniform(2, key, ns.Float, 8)
        if not kept:
            kept["numbers"] = ns.Float(NUMBERS)
            dr.eval(kept)
        return x, [x[0] + kept["numbers"]]

    run = cn.fit(tiny_field(backend), batch, 3, progress=False)
    assert len(run.losses) == 3


def test_arrays_of_given_numbers(backend, ns):
    def batch(key):
        x = cn.uniform(2, key, ns.Float, 8)
        return x, [x[0] + ns.Float([1.0, 2, 3, 4, 5, 6, 7, 8])]

    words = r"recorded: it uses an array that was created inside .* such as Float\(\[1, 2, 3\]\) before fit"
    with pytest.raises(RuntimeError, match=words):
        cn.fit(tiny_field(backend), batch, 3, progress=False)


def test_errors_of_the_batch(backend, ns):
    draw, calls = tiny_batch(ns), []

    def batch(key):
        calls.append(key)
        if len(calls) > 2:
            raise KeyError("the picture")
        return draw(key)

    with pytest.raises(RuntimeError, match=r"^fit: a step could not be recorded: KeyError: 'the picture'\.$") as caught:
        cn.fit(tiny_field(backend), batch, 3, progress=False)
    assert "calls.append(key)" in str(caught.getrepr(chain=True))  # where


@pytest.mark.filterwarnings("ignore:The frozen function has been recorded")
def test_numbers_in_a_dictionary_record_the_step_again(backend, ns):
    """Each change of them. Dr.Jit's own message says nothing of the cause."""
    weight, x = {"value": 1.0}, ns.Float(np.linspace(0, 1, 8))
    dr.eval(x)

    def rate(step):
        weight["value"] = 1 + step / 40
        return 1e-3

    def batch(key):
        return [x, x], [x]

    def loss(y, targets):
        return dr.square(y[0] - targets[0]) * weight["value"]

    with pytest.warns(RuntimeWarning, match="recorded 16 times in 16 steps.*numbers in lists and dictionaries") as told:
        result = cn.fit(tiny_field(backend), batch, 20, loss=loss, lr=rate, progress=False)
    assert result.recordings >= 20 and sum("recorded 1" in str(w.message) for w in told) == 1


def test_arrays_that_virtual_functions_use():
    """What Dr.Jit says names an argument of dr.freeze that fit does not have."""
    first = RuntimeError(
        "record(): validate(): The frozen function included a virtual function call involving variable s1."
    )
    recorded = RuntimeError("record(): error encountered while recording a frozen function (see above).")
    with (
        pytest.raises(RuntimeError, match=r"fit: a step could not be recorded: a virtual .*self\.field"),
        reasons(),
    ):
        raise recorded from first


def test_other_errors_stay_what_they_are():
    recorded = "record(): error encountered while recording a frozen function (see above)."
    for error, cause in (
        (RuntimeError("out of memory"), ValueError("x")), (RuntimeError(recorded), None),
        (RuntimeError(recorded), KeyboardInterrupt()), (ValueError(recorded), ValueError("x")),
    ):  # fmt: skip
        with pytest.raises(type(error)) as caught, reasons():
            raise error from cause
        assert caught.value is error and caused_by_interrupt(error) == isinstance(cause, KeyboardInterrupt)
