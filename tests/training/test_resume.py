"""Resuming: as if the run had not stopped, from a file that is whole, or not at all."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import random
from types import SimpleNamespace

import drjit as dr
import numpy as np
import pytest
from drjit.opt import Adam
from support.networks import weights
from support.training import make_batch, make_field

import coopnet as cn
from coopnet.training import state
from coopnet.training.result import FitResult
from coopnet.training.scaler import LossScaler
from coopnet.training.state import File

st = pytest.importorskip("safetensors.numpy")
safetensors = pytest.importorskip("safetensors")

MUTATIONS = int(os.environ.get("COOPNET_MUTATIONS", "250"))


def arrays(value):
    """Everything in a tree as NumPy arrays, in order."""
    if isinstance(value, dict):
        return [a for k in sorted(value) for a in arrays(value[k])]
    if isinstance(value, (list, tuple)):
        return [a for v in value for a in arrays(v)]
    if isinstance(value, np.ndarray):
        return [value]
    return [dr.detach(value).numpy()] if isinstance(value, dr.ArrayBase) else []


def same(a, b):
    a, b = arrays(a), arrays(b)
    return len(a) == len(b) and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# ---- what is restored ---------------------------------------------------


def _run(backend, seed, numbers=True):
    """All that a training run holds, with random numbers in it if ``numbers``; the field trains in half precision."""
    rng = np.random.default_rng(seed)
    field = make_field(backend, "half", seed=seed)
    optimizer = Adam(lr=1e-3)
    optimizer.update(field)
    scaler = LossScaler(cn.backend.namespace(backend).Float32)
    ema = cn.training.EMA(field)
    result, best = FitResult(), None
    if numbers:

        def drawn(value):
            if isinstance(value, (dict, tuple)):
                pairs = value.items() if isinstance(value, dict) else enumerate(value)
                made = {k: drawn(v) for k, v in pairs}
                return made if isinstance(value, dict) else tuple(made.values())
            if not isinstance(value, dr.ArrayBase):
                return value
            return type(value)(rng.integers(1, 99, dr.shape(value)).astype(dr.detach(value).numpy().dtype))

        optimizer.state, ema.average = drawn(optimizer.state), drawn(ema.average)
        scaler.scale_factor, scaler.it, scaler.skipped = (
            drawn(v) for v in (scaler.scale_factor, scaler.it, scaler.skipped)
        )
        best = drawn(dict(optimizer.items()))
        result = FitResult(30, rng.random(30).tolist(), [(10, 0.5), (20, 2.5), (30, math.nan)], (20, 2.5), seconds=1.5)
    return SimpleNamespace(
        field=field, optimizer=optimizer, scaler=scaler, ema=ema, result=result, best=best, loss_scale=None
    )


def _restore(path, run, seed=7):
    file = File(path, 60.0, True, {}, run.field, seed)
    return file.restore(file.content(), run, run.result)


def _state(run):
    """What restoring may change, and the field, which it may not: identities, numbers and the result."""
    scaler = [getattr(run.scaler, name) for name in ("scale_factor", "it", "skipped")]
    held = [id(v) for v in (run.optimizer.state, run.ema.average, *scaler)]
    numbers = arrays([run.optimizer.state, run.ema.average, scaler, {k: run.field[k] for k in run.field}])
    return held, [(a.dtype, a.tobytes()) for a in numbers], dataclasses.asdict(run.result)


@pytest.fixture(scope="module")
def written(backend, tmp_path_factory):
    """A checkpoint of a run with everything in it: path, the run, its metadata and its tensors."""
    path = tmp_path_factory.mktemp("resume") / "run.safetensors"
    run = _run(backend, 1)
    File(path, 60.0, False, {"scene": "kitchen"}, run.field, 7).write(run, run.result, run.best)
    with safetensors.safe_open(path, framework="np") as file:
        meta, data = dict(file.metadata()), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    return SimpleNamespace(path=path, run=run, meta=meta, data=data)


def test_everything_comes_back(backend, written):
    fresh = _run(backend, 1, numbers=False)
    best = _restore(written.path, fresh)
    run = written.run
    assert same(fresh.optimizer.state, run.optimizer.state) and same(fresh.ema.average, run.ema.average)
    assert all(dr.grad_enabled(entry[0]) for entry in fresh.optimizer.state.values())
    for name in ("scale_factor", "it", "skipped"):
        assert same([getattr(fresh.scaler, name)], [getattr(run.scaler, name)])
    assert same(best, run.best) and {k: type(v) for k, v in best.items()} == {k: type(v) for k, v in run.best.items()}
    found, expected = (dataclasses.asdict(r.result) for r in (fresh, run))
    assert repr(found) == repr(expected | {"skipped": 0})  # NaN is not equal to itself


@pytest.mark.parametrize(("metrics", "best", "right"), [
    ([], None, True), ([[1, 2.0]], [1, 2.0], True), ([[1, 2.0], [30, 3.0]], None, True), ([[0, 2.0]], None, False),
    ([[5, 2.0], [5, 2.0]], None, False), ([[6, 2.0], [5, 2.0]], None, False), ([[31, 2.0]], None, False),
    ([[5, 2.0]], [6, 2.0], False), ([[5, 2]], None, False), ([5, 2.0], None, False), (None, None, False),
    ([[5, math.nan]], [5, math.nan], True),
])  # fmt: skip
def test_metrics_in_files(metrics, best, right):
    """One for each of some of the steps that were taken, the best among them."""
    progress = {"steps": 30, "metrics": metrics, "best": best, "seconds": 0.0}
    text = json.dumps({"run": {"seed": 1}, "progress": progress})
    if right:
        found = state._progress(text, {"seed": 1}, np.zeros(30))
        assert repr(found["metrics"]) == repr([tuple(pair) for pair in metrics])
        assert repr(found["best"]) == repr(best and tuple(best))
    else:
        with pytest.raises(ValueError, match="metric"):
            state._progress(text, {"seed": 1}, np.zeros(30))


# ---- damaged files ------------------------------------------------------


def _paths(tree, path=()):
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for k, v in items:
        yield from _paths(v, (*path, k))


def _at(tree, path):
    for k in path:
        tree = tree[k]
    return tree


_WRONG = [
    None, True, False, -1, 0, 1.5, -0.5, 2**32, 2**70, 10**30, math.nan, math.inf, -math.inf, "", "x", "7", "\ud800",
    [], [1], [[1, 2.0]], [None], {}, {"": 0}, {"run": {}}, "x" * 10_000,
]  # fmt: skip


def _mutate(tree, rng):
    """A copy of ``tree`` with one thing changed, and in words what."""
    tree = copy.deepcopy(tree)
    path = rng.choice([p for p in _paths(tree) if p])
    parent, key = _at(tree, path[:-1]), path[-1]
    kind = rng.choice(["replace", "replace", "replace", "delete", "add", "wrap", "rename", "nudge"])
    if kind == "delete":
        del parent[key]
    elif kind == "add":
        target = _at(tree, path)
        if isinstance(target, dict):
            target[rng.choice(["more", "steps", "seed", ""])] = rng.choice(_WRONG)
        elif isinstance(target, list):
            target.insert(rng.randrange(len(target) + 1), rng.choice(_WRONG))
        else:
            parent[key] = [target]
    elif kind == "wrap":
        parent[key] = {"value": parent[key]}
    elif kind == "rename" and isinstance(parent, dict):
        parent[f"{key}s"] = parent.pop(key)
    elif kind == "nudge" and isinstance(parent[key], (int, float)):
        parent[key] += rng.choice([1, -1, 0.5])
    else:
        parent[key] = rng.choice(_WRONG)
    return tree, f"{kind} at {path}"


def _meaning(state):
    """What a resumed run takes from a state that is right."""
    return json.dumps([state["run"], state["progress"]["steps"]], sort_keys=True)


def _right(state, original):
    """Is this a state that some run could have written? Told apart from the library's own checks."""
    try:
        progress = state["progress"]
        steps = [step for step, _ in progress["metrics"]]
        pairs = [*progress["metrics"], progress["best"]]
        return (
            set(state) == set(original)
            and set(progress) | {"loss_scale"} == set(original["progress"])  # which older files lack
            and (progress.get("loss_scale") is None or 0 < progress["loss_scale"] < math.inf)
            and _meaning(state) == _meaning(original)
            and all(type(s) is int and type(v) is float for s, v in pairs)
            and all(a < b <= 30 for a, b in zip([0, *steps], steps, strict=False))
            and repr(progress["best"]) in map(repr, progress["metrics"])  # of what the best parameters are
            and type(progress["seconds"]) is float
            and 0 <= progress["seconds"] < math.inf
        )
    except (TypeError, ValueError, KeyError):
        return False


def test_changed_metadata(backend, written, tmp_path):
    """Any change to the state in a file is refused by name before anything is restored, or makes another right one."""
    path = tmp_path / "run.safetensors"
    user = json.loads(written.meta["user"])
    original = json.loads(user["training"])
    fresh = _run(backend, 1, numbers=False)
    before = _state(fresh)
    rng = random.Random(20)
    refused = 0
    for _ in range(MUTATIONS):
        state, what = _mutate(original, rng)
        meta = written.meta | {"user": json.dumps(user | {"training": json.dumps(state)})}
        st.save_file(written.data, path, metadata=meta)
        try:
            _restore(path, fresh)
        except ValueError as error:
            assert str(path) in str(error) and len(str(error)) < 400, what
            assert _state(fresh) == before, what
            refused += 1
        else:
            assert _right(state, original), what
            fresh = _run(backend, 1, numbers=False)
            before = _state(fresh)
    assert refused > 0.8 * MUTATIONS


@pytest.mark.parametrize(
    "training",
    [5, None, True, [], {}, "", "{", "null", "[]", "NaN", '{"run": {}}', "[" * 100_000, '"' + "x" * 5000, "1" * 5000],
    ids=range(14),
)
def test_training_metadata_that_is_none(training, backend, written, tmp_path):
    path = tmp_path / "run.safetensors"
    user = json.loads(written.meta["user"]) | {"training": training}
    st.save_file(written.data, path, metadata=written.meta | {"user": json.dumps(user)})
    fresh = _run(backend, 1, numbers=False)
    before = _state(fresh)
    with pytest.raises(
        ValueError, match=r"fit: cannot resume '.*run\.safetensors': the state of its training"
    ) as caught:
        _restore(path, fresh)
    assert _state(fresh) == before and len(str(caught.value)) < 400


def test_cut_and_flipped_text(backend, written, tmp_path):
    """The state as text, with characters changed, lost and repeated."""
    path = tmp_path / "run.safetensors"
    user = json.loads(written.meta["user"])
    original = json.loads(user["training"])
    fresh = _run(backend, 1, numbers=False)
    before = _state(fresh)
    rng = random.Random(21)
    for _ in range(MUTATIONS // 4):
        text = list(user["training"])
        place = rng.randrange(len(text))
        text[place : place + rng.choice([0, 1, 1, 3])] = rng.choice(
            ["", '"', "0", "9", "]", "}", ",", "[", "null", "-"]
        )
        st.save_file(
            written.data, path, metadata=written.meta | {"user": json.dumps(user | {"training": "".join(text)})}
        )
        try:
            _restore(path, fresh)
        except ValueError as error:
            assert str(path) in str(error)
            assert _state(fresh) == before
        else:
            assert _right(json.loads("".join(text)), original), "".join(text)
            fresh = _run(backend, 1, numbers=False)
            before = _state(fresh)


def test_changed_tensors(backend, written, tmp_path):
    path = tmp_path / "run.safetensors"
    fresh = _run(backend, 1, numbers=False)
    before = _state(fresh)
    names = [name for name in written.data if name.startswith("train.")]
    kinds = ["losses", "scale_factor", "it", "skipped"]
    assert {n.removeprefix("train.").split("/")[0] for n in names} == {*kinds, "optimizer", "best", "ema"}
    for name in names:
        value = written.data[name]
        rest = {k: v for k, v in written.data.items() if k != name}
        only_best = name.startswith("train.best/")  # one entry: without it, the run kept no best parameters
        changed = [
            *([] if only_best else [rest]),
            rest | {f"{name}s": value},
            rest | {name: value.astype(np.int64)},
            rest | {name: np.concatenate([value.ravel(), value.ravel()[:1]])},
            rest | {name: value.ravel()[:-1]},
        ]
        for data in changed:
            st.save_file(data, path, metadata=written.meta)
            with pytest.raises(ValueError, match=r"fit: cannot resume '.*run\.safetensors': ") as caught:
                _restore(path, fresh)
            assert name.removeprefix("train.").split("/")[0] in str(caught.value)
            assert _state(fresh) == before
    st.save_file(written.data | {"train.more": np.zeros(3)}, path, metadata=written.meta)
    with pytest.raises(ValueError, match="has the unknown 'more'"):
        _restore(path, fresh)
    assert _state(fresh) == before


def test_another_run(backend, written):
    other = Adam(1e-3, amsgrad=True)
    other.update(make_field(backend, "half"))
    for name, value, words in (
        ("seed", 8, "its seed is '7', but this run's is '8'"),
        ("scaler", None, "has the unknown"),
        ("optimizer", other, "lacks 'optimizer/"),
        (
            "field",
            make_field(backend, "half", dropout=0.2),
            r"another architecture: network.layers.2.p is 0.1 there, and 0.2 here",
        ),
        (
            "field",
            make_field(backend, "half", dropout=0),
            r"another architecture: network.layers.2 is coopnet.Dropout there, and coopnet.Linear here",
        ),
    ):
        fresh = _run(backend, 1, numbers=False)
        if name != "seed":
            setattr(fresh, name, value)
        with pytest.raises(ValueError, match=words):
            _restore(written.path, fresh, seed=value if name == "seed" else 7)
        assert fresh.result == FitResult()
    fresh = _run(backend, 1, numbers=False)
    fresh.ema = None  # an average that the run does not go on with is no obstacle
    _restore(written.path, fresh)
    assert fresh.result.steps == 30


def test_a_run_without_an_average(backend, ns, tmp_path):
    field, path = make_field(backend), tmp_path / "run.safetensors"
    cn.fit(field, make_batch(ns), 1, checkpoint=path, progress=False)
    with pytest.raises(ValueError, match=r"cannot resume .*: it has no average of the weights; resume without ema="):
        cn.fit(field, make_batch(ns), 2, checkpoint=path, resume=True, ema=cn.training.EMA(field), progress=False)


# ---- whole runs ---------------------------------------------------------


@pytest.mark.parametrize("precision", ["single", "half"])
def test_best_of_the_first_run_comes_back(precision, ns, backend, tmp_path):
    """Patience counts on from the best of the run before, and its weights are those that come back."""
    if backend == "cuda" and precision == "single":
        pytest.skip("CUDA multiplies half precision only")
    values, seen = iter([1.0, 5.0, 2.0, 3.0, 4.0, 9.0]), []

    def metric(field):
        seen.append(weights(field))
        return next(values)

    path = tmp_path / "run.safetensors"
    options = dict(
        lr=1e-2, metric=metric, metric_every=5, patience=3, checkpoint=path, checkpoint_every=1e9, progress=False
    )
    first = cn.fit(make_field(backend, precision), make_batch(ns), 15, **options)
    assert first.best == (10, 5.0) and first.stopped == "steps"
    field = make_field(backend, precision, seed=1)
    result = cn.fit(field, make_batch(ns), 100, resume=True, **options)
    assert result.best == (10, 5.0) and result.stopped == "patience" and result.steps == 25
    assert result.metrics == [(5, 1.0), (10, 5.0), (15, 2.0), (20, 3.0), (25, 4.0)]
    assert same(weights(field), seen[1]) and not same(seen[1], seen[4])


def test_schedules_go_on(ns, backend, tmp_path):
    """A resumed run asks for the rates of its own steps, and what they are not checked for ends it before a step."""
    path, asked = tmp_path / "run.safetensors", []

    def rate(step):
        asked.append(step)
        return 0.0 if step < 4 else 1e-2 if step < 6 else float("nan")

    options = dict(lr=rate, checkpoint=path, progress=False)
    start = weights(make_field(backend))
    field = make_field(backend)
    cn.fit(field, make_batch(ns), 4, **options)
    assert asked == [0, 1, 2, 3] and same(weights(field), start)
    field = make_field(backend)
    cn.fit(field, make_batch(ns), 6, resume=True, **options)
    assert asked == [0, 1, 2, 3, 4, 5] and not same(weights(field), start)
    with pytest.raises(ValueError, match=r"lr\(6\) is nan"):
        cn.fit(make_field(backend), make_batch(ns), 8, resume=True, **options)
    assert cn.io.read(path).tensors["train.losses"].size == 6


def test_averages_and_overflows_go_on(ns, backend, tmp_path):
    """Half precision with steps that overflow, an average of weights, and a stop in between: equal to one run."""

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 256)
        large = dr.select(key.step % 4 == 0, ns.Float(1e6), 1)
        return [x, y], [dr.sin(6 * x) * large, x * y]

    path = tmp_path / "run.safetensors"
    ends = []
    for steps in ((20,), (9, 20)):
        for number, last in enumerate(steps):
            field = make_field(backend, "half")
            ema = cn.training.EMA(field, 0.9)
            options = dict(checkpoint=path, resume=number > 0) if len(steps) > 1 else {}
            result = cn.fit(field, batch, last, lr=1e-2, ema=ema, progress=False, **options)
        ends.append((weights(field), arrays(ema.average), result))
    (one, average, whole), (two, resumed_average, resumed) = ends
    assert resumed.skipped == whole.skipped and 0 < whole.skipped < 20
    if backend == "llvm":
        assert same(one, two) and same(average, resumed_average)
        assert resumed.losses == whole.losses


def test_a_full_disk_keeps_the_last_checkpoint(ns, backend, tmp_path, monkeypatch):
    """The run ends with an error that names the file, which is whole and can be resumed from."""
    path, options = tmp_path / "run.safetensors", dict(lr=1e-2, progress=False)
    whole = make_field(backend)
    cn.fit(whole, make_batch(ns), 12, **options)
    genuine, written = os.fsync, []

    def fsync(descriptor):
        written.append(descriptor)
        if len(written) > 8:  # the file and its folder, each time
            raise OSError(28, "No space left on device")
        genuine(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match=r"No space left.*run\.safetensors"):
            cn.fit(make_field(backend), make_batch(ns), 12, checkpoint=path, checkpoint_every=0, **options)
    assert os.listdir(tmp_path) == [path.name]
    assert 0 < cn.io.read(path).tensors["train.losses"].size < 12
    field = make_field(backend)
    cn.fit(field, make_batch(ns), 12, checkpoint=path, resume=True, **options)
    if backend == "llvm":
        assert same(weights(field), weights(whole))


@pytest.mark.parametrize("way", ["learned", "schedule"])
def test_rates_that_change_are_no_other_architecture(ns, backend, tmp_path, way):
    """A stopped run goes on to the same bits, and another layer is still noticed."""

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 256)
        return [x, y], [x * y]

    def make(layer):
        layers = cn.Linear(2, 8), cn.ReLU(), layer, cn.Linear(8, 1)
        return cn.NeuralField(None, cn.Sequential(*layers)).build(backend, seed=2)

    ends, path = [], tmp_path / "run.safetensors"
    for steps in ((8,), (5, 8)):
        for number, last in enumerate(steps):
            layer = cn.ConcreteDropout(0.3) if way == "learned" else cn.Dropout(dr.opaque(ns.Float, 0.3))
            field = make(layer)

            def lr(step, field=field):
                if way == "schedule":
                    field.network.layers[2].p = dr.opaque(ns.Float, 0.3 - step / 50)
                return 1e-2

            options = dict(checkpoint=path, resume=number > 0) if len(steps) > 1 else {}
            result = cn.fit(field, batch, last, lr=lr, progress=False, **options)
        ends.append((arrays(dict(field)), result.losses))
    assert ends[0][1] == ends[1][1] if backend == "llvm" else len(ends[1][1]) == 8
    assert same(ends[0][0], ends[1][0]) or backend == "cuda"
    for layer in (cn.Dropout(0.3), cn.DropPath(dr.opaque(ns.Float, 0.3)), cn.ReLU()):
        with pytest.raises(ValueError, match=r"another architecture|its parameters"):
            cn.fit(make(layer), batch, 9, checkpoint=path, resume=True, progress=False)


def test_a_scale_that_is_given_replaces_the_old_one(ns, backend, tmp_path):
    """As all but the seed and the network may have changed."""
    options = dict(checkpoint=tmp_path / "f.safetensors", progress=False)
    field, batch = make_field(backend, "half", seed=1), make_batch(ns)
    with pytest.warns(RuntimeWarning, match="skipped"):
        cn.fit(field, batch, 4, loss_scale=2.0**100, **options)
    result = cn.fit(make_field(backend, "half", seed=1), batch, 8, loss_scale=128.0, resume=True, **options)
    assert result.skipped == 4  # of the first run


def test_a_scale_that_is_given_again_goes_on(ns, backend, tmp_path):
    """The first steps have halved it; the others begin with what was left."""
    batch, path = make_batch(ns), tmp_path / "f.safetensors"
    options = dict(loss_scale=2**26, lr=1e-2, progress=False)
    whole, part, rest = (make_field(backend, "half", seed=1) for _ in range(3))
    once = cn.fit(whole, batch, 40, **options)
    cn.fit(part, batch, 20, checkpoint=path, **options)
    result = cn.fit(rest, batch, 40, checkpoint=path, resume=True, **options)
    assert result.skipped == once.skipped > 0
    if backend == "llvm":
        assert result.losses == once.losses
        assert np.array_equal(rest["network.weights"].numpy(), whole["network.weights"].numpy())


def test_patience_that_is_added_later(ns, backend, tmp_path):
    """The file has no weights of the best step so far: the best one is looked for anew."""
    options = dict(checkpoint=tmp_path / "f.safetensors", metric_every=1, progress=False)
    batch, values = make_batch(ns), iter([9.0, 5, 4, 7, 4, 5, 6])
    kept = []

    def metric(field):
        kept.append({name: weights_of(field)[name].copy() for name in field})
        return next(values)

    cn.fit(make_field(backend), batch, 3, metric=metric, **options)
    field = make_field(backend)
    with pytest.warns(RuntimeWarning, match="no weights of the best step so far"):
        result = cn.fit(field, batch, 20, metric=metric, patience=2, resume=True, **options)
    assert result.stopped == "patience" and result.best == (4, 7.0)
    for name, value in weights_of(field).items():
        np.testing.assert_array_equal(value, kept[3][name])


def test_a_run_that_patience_ended(ns, backend, tmp_path):
    """It does not go on when it is resumed, unless it has more patience."""
    options = dict(checkpoint=tmp_path / "f.safetensors", metric=lambda field: 1.0, metric_every=5, progress=False)
    batch, found = make_batch(ns), []
    for patience in (2, 2, 3):
        result = cn.fit(make_field(backend), batch, 100, patience=patience, resume=True, **options)
        found.append((result.steps, result.stopped))
    assert found == [(15, "patience"), (15, "patience"), (20, "patience")]


def weights_of(field):
    return {name: value.numpy() for name, value in field.items()}


def test_decay_of_slow_weights(ns, backend):
    """They are decayed as the weights are, before these are pulled back to them."""
    field = cn.NeuralField(None, cn.Sequential(cn.Linear(1, 1, bias=False))).build(backend)
    field.set_matrix("layers.0.weights", [[4.0]])
    optimizer = cn.training.SGD(0.1, lookahead=2, alpha=0.5)

    def batch(key):
        return [cn.uniform(1, key, ns.Float, 8)[0] * 0], [ns.Float(0)]

    cn.fit(field, batch, 2, optimizer=optimizer, weight_decay=1.0, progress=False)
    expected = 0.5 * (4 + 4 * 0.9**2)
    assert optimizer.slow_weights()["network.weights"].numpy().max() == pytest.approx(expected, rel=1e-6)
    assert field.matrix("layers.0.weights").item() == pytest.approx(expected, rel=1e-3)


def test_a_smaller_lookahead(ns, backend, tmp_path):
    """The slow weights go on moving."""
    options = dict(checkpoint=tmp_path / "f.safetensors", progress=False)
    batch, field = make_batch(ns), make_field(backend)
    cn.fit(field, batch, 4, optimizer=cn.training.Adam(1e-2, lookahead=5), **options)
    optimizer, field = cn.training.Adam(1e-2, lookahead=3), make_field(backend)
    start = {name: value.numpy().copy() for name, value in field.items()}
    cn.fit(field, batch, 6, optimizer=optimizer, resume=True, **options)
    moved = [np.abs(value.numpy() - start[name].ravel()).max() for name, value in optimizer.slow_weights().items()]
    assert max(moved) > 1e-4
