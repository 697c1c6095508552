"""The libraries that are measured: one class for each, with the same network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .problem import DEPTH, LOSS_SCALE, N_IN, N_OUT, data, matrices

Call = Callable[[], Any]


class Peer:
    """One way to compute the network, on ``backend``. Calls wait for their results."""

    def __init__(self, backend: str, width: int, batch: int):
        self.backend, self.half, self.width, self.batch = backend, backend == "cuda", width, batch
        self.weights = matrices(width, self.half)

    def calls(self, mode: str) -> Iterator[tuple[str, Call]]:
        """Ways to call inference (``"infer"``) or a training step (``"train"``), with a word for each."""
        raise NotImplementedError

    def gradients(self, result: Any) -> list[np.ndarray]:
        """The gradients that a training step returned, as matrices."""
        raise NotImplementedError


class DrJitPeer(Peer):
    """The base of peers that compute with Dr.Jit. Functions are measured frozen (``dr.freeze``) and not."""

    def __init__(self, backend: str, width: int, batch: int):
        super().__init__(backend, width, batch)
        import drjit as dr

        from ..backend import namespace

        self.dr, self.ns = dr, namespace(backend)
        self.tensor = self.ns.TensorXf16 if self.half else self.ns.TensorXf
        leaf = self.ns.Float16 if self.half else self.ns.Float
        self.x, self.t = ([leaf(np.ascontiguousarray(row)) for row in part] for part in data(batch, self.half))
        # opaque: a number in the code would be compiled into the kernel
        self.factor = dr.opaque(self.ns.Float, LOSS_SCALE / (N_OUT * batch))
        dr.eval(self.x, self.t)
        self.prepare()

    def prepare(self) -> None:
        """Make the network."""
        raise NotImplementedError

    def step(self, mode: str) -> tuple[Callable[..., Any], tuple]:
        """A function that can be frozen, and its arguments."""
        raise NotImplementedError

    def loss(self, y: Any, t: Any, factor: Any) -> Any:
        """Summands of the loss, in single precision; ``dr.backward`` adds them up."""
        single = self.ns.Float
        return sum((self.dr.square(single(a) - single(b)) for a, b in zip(y, t, strict=True)), single(0)) * factor

    def calls(self, mode: str) -> Iterator[tuple[str, Call]]:
        function, arguments = self.step(mode)
        for word, chosen in (("frozen", self.dr.freeze(function)), ("not frozen", function)):

            def call(chosen: Callable = chosen) -> Any:
                result = chosen(*arguments)
                self.dr.eval(result)
                self.dr.sync_thread()
                return result

            yield word, call


class Coopnet(DrJitPeer):
    """:class:`coopnet.MLP` in a :class:`coopnet.NeuralField`."""

    def prepare(self) -> None:
        from ..field import NeuralField
        from ..nn import MLP, Linear

        net = MLP(N_IN, N_OUT, width=self.width, depth=DEPTH)
        field = NeuralField(None, net, output="float16" if self.half else "float32")
        field = field.allocate(self.tensor, "half" if self.half else "single")
        self._fill([v for v in field.network.layers if isinstance(v, Linear)])
        self.net, self.name = field.pack(), "network.weights"
        self.linear = [v for v in field.network.layers if isinstance(v, Linear)]

    def _fill(self, linear: list) -> None:
        for layer, w in zip(linear, self.weights, strict=True):
            layer.weights = self.tensor(w)

    def evaluate(self, net: Any, x: list) -> list:
        """The outputs."""
        return list(net(x))

    def step(self, mode: str) -> tuple[Callable[..., Any], tuple]:
        dr, name = self.dr, self.name

        def train(net: Any, weights: Any, x: list, t: list, factor: Any) -> Any:
            net[name] = weights
            dr.enable_grad(net[name])
            dr.backward(self.loss(self.evaluate(net, x), t, factor))
            gradient = dr.grad(net[name])
            dr.disable_grad(net[name])
            return gradient

        if mode == "infer":
            return self.evaluate, (self.net, self.x)
        # a copy, because assigning to net[name] overwrites its array
        return train, (self.net, dr.copy(self.net[name]), self.x, self.t, self.factor)

    def gradients(self, result: Any) -> list[np.ndarray]:
        import drjit.nn as drnn

        views = [layer.weights for layer in self.linear]
        views[0].buffer[:] = result  # which all views share
        return [self.tensor(drnn.unpack(view)).numpy().astype(np.float64) for view in views]


class DrJitVectors(Coopnet):
    """``drjit.nn`` with cooperative vectors."""

    def prepare(self) -> None:
        import drjit.nn as drnn

        net = _drjit_network(self.width).alloc(self.tensor, N_IN)
        self._fill(net.layers[::2])
        self.net, self.name = drnn.pack(net, layout="training"), "weights"
        self.linear = self.net.layers[::2]

    def evaluate(self, net: Any, x: list) -> list:
        import drjit.nn as drnn

        return list(net(drnn.CoopVec(x)))


class DrJitTensors(DrJitPeer):
    """``drjit.nn`` with tensors: every layer a product of its own."""

    def prepare(self) -> None:
        self.net = _drjit_network(self.width).alloc(self.tensor, N_IN)
        for layer, w in zip(self.net.layers[::2], self.weights, strict=True):
            layer.weights = self.tensor(w)
        rows, targets = data(self.batch, self.half)
        self.rows, self.targets = self.tensor(rows), self.tensor(targets)
        self.w = [layer.weights for layer in self.net.layers[::2]]

    def step(self, mode: str) -> tuple[Callable[..., Any], tuple]:
        dr, single = self.dr, self.ns.TensorXf

        def infer(net: Any, x: Any) -> Any:
            return net(x)

        def train(net: Any, x: Any, t: Any, factor: Any) -> list:
            weights = [layer.weights for layer in net.layers[::2]]
            dr.enable_grad(weights)
            loss = dr.square(single(net(x)) - single(t)) * factor
            dr.backward(loss)
            gradients = [dr.grad(w) for w in weights]
            dr.disable_grad(weights)
            return gradients

        if mode == "infer":
            return infer, (self.net, self.rows)
        return train, (self.net, self.rows, self.targets, self.factor)

    def gradients(self, result: Any) -> list[np.ndarray]:
        return [g.numpy().astype(np.float64) for g in result]


class Torch(Peer):
    """PyTorch without compilation, on all cores or on the GPU."""

    def __init__(self, backend: str, width: int, batch: int):
        super().__init__(backend, width, batch)
        import torch

        self.torch, device = torch, "cuda" if self.half else "cpu"
        torch.set_num_threads(os.cpu_count() or 1)
        x, t = data(batch, self.half)
        self.x, self.t = (torch.tensor(np.ascontiguousarray(v.T)).to(device) for v in (x, t))
        self.w = [torch.tensor(w).to(device) for w in self.weights]

    def calls(self, mode: str) -> Iterator[tuple[str, Call]]:
        torch, factor = self.torch, LOSS_SCALE / (N_OUT * self.batch)
        weights = [w.clone().requires_grad_(mode == "train") for w in self.w]

        def evaluate() -> Any:
            x = self.x
            for w in weights[:-1]:
                x = torch.relu(torch.nn.functional.linear(x, w))
            return torch.nn.functional.linear(x, weights[-1])

        def call() -> Any:
            if mode == "infer":
                with torch.inference_mode():
                    result = evaluate()
            else:
                loss = torch.sum((evaluate().float() - self.t.float()) ** 2) * factor
                result = torch.autograd.grad(loss, weights)
            if self.half:
                torch.cuda.synchronize()
            return result

        yield "eager", call

    def gradients(self, result: Any) -> list[np.ndarray]:
        return [g.detach().cpu().numpy().astype(np.float64) for g in result]


def _drjit_network(width: int) -> Any:
    import drjit.nn as drnn

    layers: list[Any] = []
    for i, o in zip([N_IN] + [width] * DEPTH, [width] * DEPTH + [N_OUT], strict=True):
        layers += [drnn.Linear(i, o, bias=False), drnn.ReLU()]
    return drnn.Sequential(*layers[:-1])


#: Peers by name, coopnet first.
PEERS: dict[str, type[Peer]] = {
    "coopnet": Coopnet, "drjit.nn, vectors": DrJitVectors, "drjit.nn, tensors": DrJitTensors, "PyTorch": Torch,
}  # fmt: skip
