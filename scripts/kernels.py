"""Do two versions of the library trace the same kernels, and compute the same numbers?

    python scripts/kernels.py --backend llvm --out before.json      # in one checkout
    python scripts/kernels.py --backend llvm --against before.json  # in another

Every job below is what users run: networks, encodings, derivatives, loops, whole training runs. Dr.Jit names a kernel
by a hash of its code, so that equal lists of hashes mean that nothing that runs has changed. Results are compared by a
digest of their bytes and, where that differs (atomics add up in any order), by their norms. Only public names are used,
which both versions must have.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drjit as dr
import drjit.nn as drnn
import drjit.opt
import numpy as np

import coopnet as cn

N = 4096
ACTIVATIONS = {
    "relu": cn.ReLU(), "leaky_relu": cn.LeakyReLU(), "tanh": cn.Tanh(), "sigmoid": cn.Sigmoid(), "silu": cn.SiLU(),
    "softplus": cn.Softplus(), "squareplus": cn.Squareplus(), "gelu": cn.GELU(), "sine": cn.Sine(), "exp": cn.Exp(),
}  # fmt: skip
ENCODINGS = {
    "hashgrid": lambda: cn.HashGrid(2, n_levels=4, hashmap_size=256),
    "smoothstep": lambda: cn.HashGrid(2, n_levels=4, interpolation="smoothstep"),
    "grid": lambda: cn.Grid(2, n_levels=4, hashmap_size=512),
    "dense": lambda: cn.Grid(2, "dense", n_levels=3),
    "tiled": lambda: cn.Grid(2, "tiled", n_levels=3),
    "nearest": lambda: cn.Grid(2, n_levels=3, interpolation="nearest"),
    "grid3": lambda: cn.Grid(3, n_levels=3, n_features_per_level=4, interpolation="smoothstep"),
    "permutohedral": lambda: cn.Permutohedral(3, n_levels=4, hashmap_size=512),
    "sinusoidal": lambda: cn.Sinusoidal(4, in_features=2),
    "triangular": lambda: cn.Triangular(4, in_features=2),
    "frequency": lambda: cn.Frequency(4, in_features=2),
    "trianglewave": lambda: cn.TriangleWave(4, in_features=2),
    "oneblob": lambda: cn.OneBlob(8, in_features=2),
    "harmonics": lambda: cn.SphericalHarmonics(3),
    "fourier": lambda: cn.Fourier(8, in_features=2),
    "composite": lambda: cn.Composite([cn.TriangleWave(4), cn.OneBlob(4), cn.Identity()], [1, 1, 1]),
}
FLAT = ("harmonics", "nearest")
STACKS = {
    "plain": lambda: cn.MLP(8, 3, width=32, depth=3),
    "biased": lambda: cn.MLP(8, 3, width=32, depth=2, bias=True),
    "odd": lambda: cn.MLP(7, 1, width=20, depth=2, bias=True, activation="softplus"),
    "wide": lambda: cn.MLP(8, 3, width=64, depth=2),
    "dropout": lambda: cn.MLP(8, 3, width=32, depth=2, dropout=0.1),
    "dropout-tanh": lambda: cn.MLP(8, 3, width=32, depth=2, dropout=0.25, activation="tanh", bias=True),
    "dropout-sigmoid": lambda: cn.MLP(8, 3, width=32, depth=2, dropout=0.25, activation="sigmoid"),
    "bits8": lambda: cn.Sequential(cn.Linear(8, 32), cn.ReLU(), cn.Dropout(0.2, bits=8), cn.Linear(-1, 3)),
    "gaussian": lambda: cn.Sequential(cn.Linear(8, 32), cn.ReLU(), cn.GaussianDropout(0.2), cn.Linear(-1, 3)),
    "path": lambda: cn.Sequential(cn.Linear(8, 32), cn.ReLU(), cn.DropPath(0.2), cn.Linear(-1, 3)),
    "residual": lambda: cn.Sequential(
        cn.Linear(8, 32), cn.Residual(cn.Sequential(cn.ReLU(), cn.Dropout(0.1), cn.Linear(32, 32))), cn.Linear(-1, 3)
    ),
    "skip": lambda: cn.Sequential(
        cn.Skip(cn.Sequential(cn.Linear(8, 32), cn.Tanh(), cn.Dropout(0.1))), cn.Linear(-1, 3)
    ),
    "heads": lambda: cn.Heads(cn.MLP(8, 32, width=32, depth=1), {"a": cn.Linear(-1, 1), "b": cn.MLP(-1, 2, width=16)}),
    "siren": lambda: cn.SIREN(8, 3, width=32, depth=2),
    "layers": lambda: cn.Sequential(
        cn.Linear(8, 16), cn.Sinusoidal(1), cn.Linear(-1, 16), cn.SiLU(), drnn.Linear(-1, 3), cn.ReLU()
    ),
}
OPTIMIZERS = {
    "adam": lambda: cn.training.Adam(1e-2, l2_reg=1e-3, relative_decay=1e-3),
    "paced": lambda: cn.training.Adam(1e-2, accumulate=2, lookahead=2),
    "sgd": lambda: cn.training.SGD(1e-2, momentum=0.9, l2_reg=1e-3),
    "adamw": lambda: drjit.opt.AdamW(1e-2),
    "rmsprop": lambda: drjit.opt.RMSProp(1e-2),
}
LOSSES = ("l2", "l1", "relative_l2", "mape", "smape")


class Jobs:
    """What is run, by name, on one backend."""

    def __init__(self, backend: str):
        self.backend, self.module = backend, cn.backend.namespace(backend)
        self.Float, self.UInt32, self.Array = self.module.Float32, self.module.UInt32, self.module.ArrayXf
        self.cuda = backend == "cuda"

    def points(self, features: int, n: int = N) -> Any:
        """Coordinates of ``n`` samples in [0, 1), evaluated."""
        # not from NumPy, whose memory begins where it likes: LLVM kernels depend on it
        rng = dr.rng(seed=features)
        x = self.Array([rng.random(self.Float, n) for _ in range(features)])
        dr.eval(x)
        return x

    def table(self, rows: int, columns: int) -> Any:
        """A tensor of numbers between -1 and 1, evaluated."""
        x = self.module.TensorXf(dr.linspace(self.Float, -1, 1, rows * columns), (rows, columns))
        dr.eval(x)
        return x

    def key(self) -> cn.Key:
        return cn.Key(seed=7, step=3)

    def field(self, net: Any, encoding: Any = None, precision: str = "auto") -> cn.NeuralField:
        return cn.NeuralField(encoding, net).build(self.backend, precision, seed=1)

    def parameters(self, field: Any) -> list:
        for name in field:
            dr.enable_grad(field[name])
        return [field[name] for name in field]

    # ---- what is done with a field -----------------------------------------

    def infer(self, field: Any, n: int = N) -> Any:
        return field(self.points(field.in_features, n), self.key())

    def train(self, field: Any, n: int = N, inputs: bool = True) -> Any:
        weights, x = self.parameters(field), self.points(field.in_features, n)
        if inputs:
            dr.enable_grad(x)
        y = field(x, self.key())
        dr.backward(dr.mean(dr.square(y), axis=None))
        return [dr.grad(w) for w in weights], dr.grad(x)

    def forward(self, field: Any) -> Any:
        weights, x = self.parameters(field), self.points(field.in_features)
        for w in weights:
            dr.set_grad(w, dr.ones(type(w), dr.shape(w)))
        return dr.forward_to(field(x, self.key()))

    def slopes(self, field: Any) -> Any:
        return field.jacobian(self.points(field.in_features), self.key())

    def eikonal(self, field: Any) -> Any:
        weights, x = self.parameters(field), self.points(field.in_features)
        rows = field.jacobian(x, self.key())
        dr.backward(dr.mean(dr.square(dr.squared_norm(rows[0]) - 1)))
        return [dr.grad(w) for w in weights]

    def loop(self, field: Any, evaluated: bool = False) -> Any:
        weights = self.parameters(field)
        x = self.points(field.in_features)
        total, i = self.Float(0), self.UInt32(0)

        def body(i: Any, total: Any) -> Any:
            y = field(x, self.key().fold_in(i))
            return i + 1, total + y[0]

        _, total = dr.while_loop(
            (i, dr.zeros(self.Float, N)),
            lambda i, total: i < 3,
            body,
            max_iterations=3,
            mode="evaluated" if evaluated else "symbolic",
        )
        dr.backward(dr.mean(total))
        return [dr.grad(w) for w in weights]

    def inside(self, field: Any) -> Any:
        weights, x = self.parameters(field), self.points(field.in_features)
        total = dr.zeros(self.Float, N)

        def body(i: Any, total: Any) -> Any:
            y = field(x, self.key().fold_in(i))
            dr.backward(dr.square(y[0]))
            return i + 1, total + dr.detach(y[0])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, total = dr.while_loop((self.UInt32(0), total), lambda i, total: i < 3, body)
        return total, [dr.grad(w) for w in weights]

    def call(self, field: Any) -> Any:
        weights, x = self.parameters(field), self.points(field.in_features)
        index = dr.arange(self.UInt32, N)

        def one(x: Any, index: Any) -> Any:
            return field(x, cn.Key(7, index))

        def two(x: Any, index: Any) -> Any:
            return field(x, cn.Key(8, index)) * 2

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = dr.switch(index % 2, [one, two], x, index)
        dr.backward(dr.mean(dr.square(y), axis=None))
        return [dr.grad(w) for w in weights]

    def fit(self, field: Any, steps: int = 4, features: int = 3, **options: Any) -> Any:
        def batch(key: Any) -> Any:
            p = cn.uniform(field.in_features, key, self.Float, 2048)
            return p, self.Array([dr.sin(6 * p[0] + i) for i in range(features)])

        result = cn.fit(field, batch, steps=steps, seed=5, progress=False, **options)
        return result.losses

    # ---- the list ----------------------------------------------------------

    def all(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        for name, make in STACKS.items():
            for verb in ("infer", "train", "slopes", "eikonal", "forward", "loop"):
                if (name, verb) == ("layers", "loop"):
                    continue
                yield f"{name}/{verb}", lambda make=make, verb=verb: getattr(self, verb)(self.field(make()))
        for name, layer in ACTIVATIONS.items():
            net = lambda layer=layer: cn.Sequential(cn.Linear(4, 16), layer, cn.Linear(-1, 1))  # noqa: E731
            for verb in ("infer", "train", "eikonal"):
                yield f"{name}/{verb}", lambda net=net, verb=verb: getattr(self, verb)(self.field(net()))
        for name, make in ENCODINGS.items():
            for verb in ("infer", "train", "slopes", "eikonal", "loop"):
                if verb == "eikonal" and name in FLAT:
                    continue
                yield (
                    f"{name}/{verb}",
                    lambda make=make, verb=verb: getattr(self, verb)(
                        self.field(cn.MLP(out_features=1, width=16), make())
                    ),
                )
        for name in ("dropout", "residual", "biased"):
            yield f"{name}/call", lambda name=name: self.call(self.field(STACKS[name]()))
            yield f"{name}/inside", lambda name=name: self.inside(self.field(STACKS[name]()))
            yield f"{name}/evaluated", lambda name=name: self.loop(self.field(STACKS[name]()), True)
            yield f"{name}/weights-only", lambda name=name: self.train(self.field(STACKS[name]()), inputs=False)
            yield f"{name}/large", lambda name=name: self.train(self.field(STACKS[name]()), 1 << 16)
            yield f"{name}/half", lambda name=name: self.train(self.field(STACKS[name](), precision="half"))
            for path in ("spill", "banks", "builtin"):
                yield f"{name}/{path}", lambda name=name, path=path: self.path(path, name)
            yield f"{name}/deterministic", lambda name=name: self.deterministic(name)
        yield "grid/deterministic", lambda: self.deterministic("grid")
        for name, optimizer in OPTIMIZERS.items():
            yield f"fit/{name}", lambda optimizer=optimizer: self.fit(self.image(), optimizer=optimizer())
        yield "fit/default", lambda: self.fit(self.image())
        for loss in LOSSES:
            yield f"fit/{loss}", lambda loss=loss: self.fit(self.image(), loss=loss)
        yield "fit/dropout", lambda: self.fit(self.field(cn.MLP(2, 3, width=32, depth=2, dropout=0.1)))
        yield "fit/decay", lambda: self.fit(self.image(), weight_decay=0.1, multipliers={"layers.0": 0.5})
        yield "fit/penalty", lambda: self.fit(self.image(), penalty=lambda f: cn.training.l2_penalty(f) * 1e-3)
        yield "fit/ema", self.average
        yield "fit/half", lambda: self.fit(self.field(cn.MLP(2, 3, width=32, depth=2), precision="half"))
        yield "fit/clip", lambda: self.fit(self.image(), clip_norm=1.0)
        yield from self.functions()

    def encoded(self, encoding: Any) -> cn.NeuralField:
        return self.field(cn.MLP(out_features=1, width=16), encoding)

    def image(self) -> cn.NeuralField:
        return self.field(cn.MLP(out_features=3, width=32, depth=2), cn.HashGrid(2, n_levels=4, hashmap_size=1024))

    def average(self) -> Any:
        field = self.image()
        return self.fit(field, ema=cn.training.EMA(field, 0.9))

    def path(self, path: str, name: str) -> Any:
        with cn.gradient_path(path):
            return self.train(self.field(STACKS[name]()))

    def deterministic(self, name: str) -> Any:
        with cn.deterministic():
            if name in STACKS:
                return self.train(self.field(STACKS[name]()))
            return self.train(self.encoded(ENCODINGS[name]()))

    def functions(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        tensor, x = self.module.TensorXf, lambda f: self.points(f)

        def embedded(exact: bool) -> Any:
            layer = cn.Embedding(50, 8).alloc(tensor, 1)
            dr.enable_grad(layer["data"])
            ids = dr.arange(self.UInt32, N) * 7 % 50
            with cn.deterministic(exact):
                dr.backward(dr.sum(dr.square(layer(ids)), axis=None))
            return dr.grad(layer["data"])

        def tensors(rows: int, columns: int, grad: bool, bits: int = 16) -> Any:
            values = self.table(rows, columns)
            if grad:
                dr.enable_grad(values)
            y = cn.dropout(values, 0.3, self.key(), bits=bits)
            if grad:
                dr.backward(dr.square(y))
                return y, dr.grad(values)
            return y

        yield "embedding", lambda: embedded(False)
        yield "embedding/deterministic", lambda: embedded(True)
        for bits in (8, 16, 32):
            yield f"dropout/arrays{bits}", lambda bits=bits: cn.dropout(x(20), 0.3, self.key(), bits=bits)
            yield f"dropout/tensor{bits}", lambda bits=bits: tensors(24, 4096, True, bits)
        yield "dropout/small", lambda: tensors(5, 100, True)
        yield "dropout/ragged", lambda: tensors(37, 4001, False)
        yield "dropout/schedule", lambda: cn.dropout(x(20), dr.opaque(self.Float, 0.3), self.key())
        yield "dropout/vector", lambda: list(cn.dropout(drnn.CoopVec(self.half(x(20))), 0.3, self.key()))
        yield "dropout/list", lambda: cn.dropout(list(x(5)), 0.3, self.key(), stream=3)
        yield "dropout/mask", lambda: cn.dropout_mask(70, 0.3, cn.Key(3, index=dr.arange(self.UInt32, 100), step=2))
        yield "dropout/numpy", lambda: cn.dropout(np.ones((70, 50), np.float32), 0.3, cn.Key(3))
        yield "gaussian/arrays", lambda: cn.GaussianDropout(0.3)(x(20), self.key())
        yield "gaussian/numpy", lambda: cn.GaussianDropout(0.3)(np.ones((7, 50), np.float32), self.key())
        yield "path/arrays", lambda: cn.DropPath(0.3)(x(20), self.key())
        yield "path/tensor", lambda: cn.DropPath(0.3)(self.table(33, 4096), self.key())
        for convention in ("triton", "ztensor"):
            yield f"seeded/{convention}", lambda c=convention: cn.seeded_dropout(x(1)[0], 0.3, 5, convention=c)
        for transposed in (False, True):
            yield f"projection/{transposed}", lambda t=transposed: self.projection(t)

    def half(self, x: Any) -> list:
        return [self.module.Float16(v) for v in x] if self.cuda else list(x)

    def projection(self, transposed: bool) -> Any:
        layer = cn.SparseProjection(64, 16, seed=3)
        x = self.table(16 if transposed else 64, 300)
        dr.enable_grad(x)
        y = layer.transpose(x) if transposed else layer(x)
        dr.backward(dr.square(y))
        return y, dr.grad(x), cn.SparseProjection(6, 16, seed=3)(self.points(6))


def leaves(value: Any) -> Iterator[np.ndarray]:
    """Everything in ``value`` as NumPy arrays."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, drnn.CoopVec):
        yield from leaves(list(value))
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from leaves(v)
    elif isinstance(value, dr.ArrayBase):
        yield value.numpy()
    else:
        yield np.asarray(value)


def close(old: list | None, now: list | None) -> bool:
    """Do results agree but for the order of their sums?"""
    if old is None or now is None:
        return False
    return len(old) == len(now) and bool(np.allclose(old, now, rtol=2e-3, atol=1e-6, equal_nan=True))


def run(job: Callable[[], Any]) -> dict:
    """Hashes of the kernels that a job runs, and a digest of what it computes."""
    dr.kernel_history_clear()
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        value = job()
        dr.eval(value)
        digest, norms = hashlib.sha256(), []
        for array in leaves(value):
            digest.update(np.ascontiguousarray(array).tobytes())
            norms.append(float(np.linalg.norm(array.astype(np.float64))))
        kernels = [f"{k['hash'][0]:x}" if isinstance(k["hash"], (tuple, list)) else f"{k['hash']}"
                   for k in dr.kernel_history() if k["type"] == dr.KernelType.JIT]  # fmt: skip
    return {"kernels": kernels, "result": digest.hexdigest()[:16], "norms": norms}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="llvm")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path, help="a file that --out has written")
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--part", default="0/1", help="every n-th job from the i-th on, as i/n, for several processes")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    first, count = map(int, options.part.split("/"))
    for i, (name, job) in enumerate(Jobs(options.backend).all()):
        if options.only in name and i % count == first:
            try:
                found[name] = run(job)
            except Exception as error:  # both versions should fail alike
                found[name] = {"kernels": [], "result": f"{type(error).__name__}: {error}"[:100]}
    if options.out:
        options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if not options.against:
        print(f"{len(found)} jobs, {sum(len(f['kernels']) for f in found.values())} kernels")
        for name, f in found.items():
            if not f["kernels"] and "numpy" not in name:
                print("  nothing ran:", name, f["result"])
        return 0
    before = json.loads(options.against.read_text(encoding="utf-8"))
    changed = bits = 0
    for name, now in found.items():
        old = before.get(name)
        if old is None:
            print(f"{name}: new")
            continue
        kernels = old["kernels"] != now["kernels"]
        values = old["result"] != now["result"] and not close(old.get("norms"), now.get("norms"))
        bits += old["result"] != now["result"]
        if kernels or values:
            changed += 1
            same = sum(a == b for a, b in zip(old["kernels"], now["kernels"], strict=False))
            what = f"{same} of {len(old['kernels'])} kernels the same, now {len(now['kernels'])}" if kernels else ""
            print(f"{name}: {what}{'; other results' if values else ''}  {now['result'] if not now['kernels'] else ''}")
    missing = [name for name in before if name not in found and options.only in name] if count == 1 else []
    print(f"{len(found)} jobs, {changed} changed, {bits} with other bits of sums by atomics, missing: {missing}")
    return 1 if changed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
