"""Optimizers of configurations step by step beside models of tiny-cuda-nn's kernels, in double precision."""

from __future__ import annotations

import math

import drjit as dr
import numpy as np
import pytest
from support.properties import example, given, settings, st

import coopnet as cn

NAMES = ("network.weights", "encoding.data")
SIZE = 6


def make(given, ns, start):
    """The optimizer of a configuration with a matrix and a grid, and the rate of its steps."""
    config = cn.from_config(2, 1, {"encoding": {"otype": "Identity"}, "optimizer": given})
    optimizer = config.optimizer()
    for name, w in zip(NAMES, start, strict=True):
        optimizer[name] = ns.Float(w.astype(np.float32))
    return optimizer


def feed(optimizer, ns, gradients, scale=64.0):
    """A step with gradients of a loss that was scaled."""
    for name, g in zip(NAMES, gradients, strict=True):
        dr.set_grad(dict(optimizer.items())[name], ns.Float((scale * g).astype(np.float32)))
    optimizer.step(grad_scale=ns.Float(1 / scale))


def drawn(seed, steps):
    """Start, and gradients of which some entries are zero, the last always but once."""
    rng = np.random.default_rng(seed)
    start, gradients = rng.normal(size=(2, SIZE)), rng.normal(size=(steps, 2, SIZE))
    gradients *= rng.random(gradients.shape) < 0.6
    gradients[:, :, -1] *= (np.arange(steps) == 1)[:, None]
    return start, gradients


ADAM = {
    "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "l2_reg": 1e-8, "adabound": False,
    "relative_decay": 0.0, "absolute_decay": 0.0, "clipping_magnitude": 0.0, "gradient_clipping_magnitude": 0.0,
    "non_matrix_learning_rate_factor": 1.0, "non_matrix_l2_reg": 0.0, "optimize_matrix_params": True,
    "optimize_non_matrix_params": True, "skip_zero_grad_non_matrix_params": True,
}  # fmt: skip


class AdamKernel:
    """``adam_step`` of tiny-cuda-nn's ``adam.h``, one entry after another; the first ``n_matrix`` are of matrices."""

    def __init__(self, weights, n_matrix, options):
        self.w, self.n_matrix, self.o = np.array(weights, np.float64), n_matrix, ADAM | options
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.param_steps, self.current_step = np.zeros(len(self.w), int), 0

    def step(self, gradients):
        o = self.o
        self.current_step += 1
        lower, upper = 0.0, math.inf
        if o["adabound"]:
            lower = 0.1 - 0.1 / ((1 - o["beta2"]) * self.current_step + 1)
            upper = 0.1 + 0.1 / ((1 - o["beta2"]) * self.current_step)
        for i, g in enumerate(gradients):
            matrix = i < self.n_matrix
            if matrix and not o["optimize_matrix_params"]:
                continue
            if not matrix:
                skipped = g == 0 and o["skip_zero_grad_non_matrix_params"]
                if skipped or not o["optimize_non_matrix_params"]:
                    continue
            w = self.w[i]
            g = g + (o["l2_reg"] if matrix else o["non_matrix_l2_reg"]) * w
            if o["gradient_clipping_magnitude"] != 0:
                g = math.copysign(min(abs(g), o["gradient_clipping_magnitude"]), g)
            self.m[i] = o["beta1"] * self.m[i] + (1 - o["beta1"]) * g
            self.v[i] = o["beta2"] * self.v[i] + (1 - o["beta2"]) * g * g
            rate = o["learning_rate"] * (1 if matrix else o["non_matrix_learning_rate_factor"])
            self.param_steps[i] += 1
            t = self.param_steps[i]
            rate *= math.sqrt(1 - o["beta2"] ** t) / (1 - o["beta1"] ** t)
            effective = min(max(rate / (math.sqrt(self.v[i]) + o["epsilon"]), lower), upper)
            decayed = (1 - o["relative_decay"] * rate) * w - math.copysign(o["absolute_decay"] * rate, w)
            new = decayed - effective * self.m[i]
            if o["clipping_magnitude"] != 0:
                new = min(max(new, -o["clipping_magnitude"]), o["clipping_magnitude"])
            self.w[i] = new


def amount(*values):
    """One of these, or none."""
    return st.sampled_from([0.0, *values])


OPTIONS = st.fixed_dictionaries({
    "learning_rate": st.sampled_from([0.1, 0.01]), "beta2": st.sampled_from([0.5, 0.99, 0.999]),
    "epsilon": st.sampled_from([1e-10, 1e-3]), "l2_reg": amount(0.3), "non_matrix_l2_reg": amount(0.2),
    "relative_decay": amount(0.5), "absolute_decay": amount(0.4), "clipping_magnitude": amount(0.7),
    "gradient_clipping_magnitude": amount(0.25), "non_matrix_learning_rate_factor": st.sampled_from([1.0, 0.1, 4.0]),
    "optimize_matrix_params": st.booleans(), "optimize_non_matrix_params": st.booleans(),
    "skip_zero_grad_non_matrix_params": st.booleans(), "adabound": st.booleans(),
})  # fmt: skip
EVERYTHING = {
    "learning_rate": 0.1, "beta2": 0.99, "epsilon": 1e-3, "l2_reg": 0.3, "non_matrix_l2_reg": 0.2,
    "relative_decay": 0.5, "absolute_decay": 0.4, "clipping_magnitude": 0.7, "gradient_clipping_magnitude": 0.25,
    "non_matrix_learning_rate_factor": 4.0, "adabound": True,
}  # fmt: skip


@settings(max_examples=25)
@given(options=OPTIONS, seed=st.integers(0, 99))
@example(options=EVERYTHING, seed=0)
@example(options={"learning_rate": 0.1, "adabound": True}, seed=1)
@example(options={"learning_rate": 0.1, "adabound": True, "skip_zero_grad_non_matrix_params": False}, seed=1)
def test_adam(ns, options, seed):
    start, gradients = drawn(seed, 6)
    kernel = AdamKernel(start.ravel(), SIZE, options)
    optimizer = make({"otype": "Adam"} | options, ns, start)
    for g in gradients:
        kernel.step(g.ravel())
        feed(optimizer, ns, g)
        found = np.concatenate([optimizer[name].numpy() for name in NAMES])
        np.testing.assert_allclose(found, kernel.w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("key, value", [
    ("l2_reg", 0.5), ("non_matrix_l2_reg", 0.5), ("relative_decay", 0.5), ("absolute_decay", 0.5), ("adabound", True),
    ("clipping_magnitude", 0.3), ("gradient_clipping_magnitude", 0.1), ("non_matrix_learning_rate_factor", 0.5),
    ("optimize_matrix_params", False), ("optimize_non_matrix_params", False),
    ("skip_zero_grad_non_matrix_params", False),
])  # fmt: skip
def test_every_key_of_adam_matters(key, value):
    """To the model, so that the test above cannot pass without it."""
    start, gradients = drawn(0, 6)
    one, other = (AdamKernel(start.ravel(), SIZE, {"learning_rate": 0.1} | more) for more in ({}, {key: value}))
    for g in gradients:
        one.step(g.ravel())
        other.step(g.ravel())
    assert np.abs(one.w - other.w).max() > 1e-3


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
def test_batched_adam(ns, options):
    """Entries are skipped where the mean of the gradients is zero, and regularized once."""
    start, gradients = drawn(3, 9)
    kernel = AdamKernel(start.ravel(), SIZE, {"learning_rate": 0.1} | options)
    nested = {"otype": "Adam", "learning_rate": 0.1} | options
    optimizer = make({"otype": "Batched", "batch_size_multiplier": 3, "nested": nested}, ns, start)
    for i, g in enumerate(gradients, 1):
        feed(optimizer, ns, g)
        if i % 3 == 0:
            kernel.step(gradients[i - 3 : i].mean(axis=0).ravel())
        found = np.concatenate([optimizer[name].numpy() for name in NAMES])
        np.testing.assert_allclose(found, kernel.w, rtol=1e-4, atol=1e-5)


def test_lookahead_around_adam(ns):
    """Its slow weights follow after every second step: tiny-cuda-nn moves them at the beginning of the next."""
    start, gradients = drawn(4, 6)
    kernel, slow = AdamKernel(start.ravel(), SIZE, EVERYTHING), start.ravel()
    nested = {"otype": "Adam"} | EVERYTHING
    optimizer = make({"otype": "Lookahead", "n_steps": 2, "alpha": 0.25, "nested": nested}, ns, start)
    for i, g in enumerate(gradients, 1):
        kernel.step(g.ravel())
        feed(optimizer, ns, g)
        if i % 2 == 0:
            slow = 0.75 * slow + 0.25 * kernel.w
            kernel.w = slow.copy()
        found = np.concatenate([optimizer[name].numpy() for name in NAMES])
        np.testing.assert_allclose(found, kernel.w, rtol=1e-4, atol=1e-5)


class NovogradKernels:
    """``novo_update_per_layer_second_moment`` and ``novo_step`` of ``novograd.h``, layer after layer."""

    def __init__(self, layers, options):
        self.w = [np.array(w, np.float64) for w in layers]
        self.o = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8} | options
        self.m, self.v, self.current_step = [np.zeros_like(w) for w in self.w], [0.0] * len(self.w), 0

    def step(self, gradients):
        o = self.o
        self.current_step += 1
        beta1, beta2 = (0.0, 0.0) if self.current_step == 1 else (o["beta1"], o["beta2"])
        for i, g in enumerate(gradients):
            self.v[i] = beta2 * self.v[i] + (1 - beta2) * np.sum(g * g)
            self.m[i] = beta1 * self.m[i] + (1 - beta1) * g / (math.sqrt(self.v[i]) + o["epsilon"])
            rate, w = o["learning_rate"], self.w[i]
            decayed = (1 - o.get("relative_decay", 0) * rate) * w
            decayed = decayed - np.copysign(o.get("absolute_decay", 0) * rate, w)
            self.w[i] = decayed - rate * self.m[i]


@pytest.mark.parametrize("options", [
    {}, {"beta1": 0.5, "beta2": 0.9}, {"relative_decay": 0.5, "absolute_decay": 0.25}, {"epsilon": 0.5}, {"beta1": 0.0},
])  # fmt: skip
@pytest.mark.parametrize("every", [1, 2])
def test_novograd(ns, backend, options, every):
    """The layers of a packed network, each with its own second moment; a grid is left alone."""
    given = {"otype": "Novograd", "learning_rate": 0.1} | options
    batched = {"otype": "Batched", "batch_size_multiplier": every, "nested": given}
    network = {"otype": "CutlassMLP", "n_neurons": 12, "n_hidden_layers": 2}
    encoding = {"otype": "HashGrid", "n_levels": 2, "log2_hashmap_size": 6, "base_resolution": 4}
    config = cn.from_config(2, 3, {"encoding": encoding, "network": network, "optimizer": batched})
    field = config.field.build(backend, seed=2)
    # weights are half precision on CUDA, the optimizer's are not
    rounding = dict(rtol=1e-3, atol=1e-3) if backend == "cuda" else dict(rtol=1e-4, atol=1e-5)
    layers = [f"network.layers.{i}.weights" for i in (0, 2, 4)]
    optimizer = config.optimizer()
    optimizer.update(field)
    grid = np.array(field["encoding.data"].numpy())
    kernels = NovogradKernels([field.matrix(name) for name in layers], given)
    rng, gathered = np.random.default_rng(0), []
    for i in range(6):
        # a field whose weights are the gradient
        gradient = config.field.build(backend, seed=3)
        for size, name in zip((1, 10, 100), layers, strict=True):
            gradient.set_matrix(name, size * rng.normal(size=gradient.matrix(name).shape))
        gathered.append([np.float64(gradient.matrix(name)) for name in layers])
        for name, value in dict(optimizer.items()).items():
            dr.set_grad(value, dr.detach(gradient[name]) * 64)
        optimizer.step(grad_scale=ns.Float(1 / 64))
        if (i + 1) % every == 0:
            kernels.step([np.mean(g, axis=0) for g in zip(*gathered, strict=True)])
            gathered = []
        field.update(optimizer)
        for name, w in zip(layers, kernels.w, strict=True):
            np.testing.assert_allclose(field.matrix(name), w, **rounding)
    np.testing.assert_array_equal(field["encoding.data"].numpy(), grid)


def test_an_average_is_of_slow_weights(backend):
    """``custom_weights`` of the optimizer inside are what tiny-cuda-nn's ``EmaOptimizer`` takes."""
    nested = {"otype": "SGD", "learning_rate": 0.5, "l2_reg": 0}
    nested = {"otype": "Lookahead", "n_steps": 2, "alpha": 0.5, "nested": nested}
    given = {"otype": "EMA", "decay": 0.75, "nested": nested}
    config = cn.from_config(1, 1, {"encoding": {"otype": "Identity"}, "optimizer": given})
    field = cn.NeuralField(None, cn.MLP(1, 1, 8, 1)).build(backend)
    optimizer, average = config.optimizer(), config.fit_arguments(field)["ema"]
    optimizer.update(field)
    w = np.float64(field["network.weights"].numpy())
    slow, mean = w, np.zeros_like(w)
    for i in range(1, 7):
        for value in optimizer.values():
            dr.set_grad(value, 1)
        optimizer.step()
        average.update(optimizer)
        w = w - 0.5
        if i % 2 == 0:
            w = slow = 0.5 * slow + 0.5 * w
        # ``ema_step_full_precision`` of ema.h
        mean = (mean * 0.75 * (1 - 0.75 ** (i - 1)) + slow * 0.25) / (1 - 0.75**i)
        np.testing.assert_allclose(average.average["network.weights"].numpy(), mean, rtol=1e-5, atol=1e-5)
    assert np.abs(mean - w).max() > 0.1
