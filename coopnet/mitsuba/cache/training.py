"""The training of a radiance cache: short paths that end in the cache itself, in a frozen step."""

from __future__ import annotations

import time
from typing import Any

import drjit as dr
from drjit.opt import Adam

from ...checks.warn import warn
from ...field import NeuralField
from ...jit.turns import TURNS
from ...random.key import Key
from ...training import EMA, FitResult, relative_l2_luminance
from ...training import arguments as training_arguments
from ...training.divergence import DivergenceMonitor
from ...training.run import Run
from ...training.scaler import LossScaler
from ...training.step import Options, Step
from .camera import Camera
from .short_paths import Ending, trace
from .surface import SurfaceRadiance


class Training:
    """Optimizer, average, and the frozen step of every setting, kept between calls of ``train``."""

    def __init__(
        self, scene: Any, field: NeuralField, averaged: NeuralField, output: SurfaceRadiance, decay: float, seed: int
    ):
        self.scene, self.field, self.averaged, self.output, self.seed = scene, field, averaged, output, seed
        self.optimizer, self.ema = Adam(lr=1e-3), EMA(field, decay)
        self.initial = {name: dr.copy(dr.detach(value)) for name, value in field.items()}
        self.frozen: dict[tuple, Step] = {}
        self.progress: Run | None = None

    @property
    def steps(self) -> int:
        return 0 if self.progress is None else self.progress.result.steps

    def run(self, steps: int, lr: Any, settings: tuple) -> FitResult:
        """Take ``steps`` steps of ``(samples, vertices, tail, sensor)``; see :meth:`RadianceCache.train`."""
        rate = training_arguments.rate(lr)
        with TURNS:
            run = self._prepared(settings)
            run.steps, run.result.stopped, run.start = run.result.steps + steps, "steps", time.monotonic()
            with run.going():
                while run.goes_on():
                    # without gradients, as before the first step; otherwise the step would be recorded again
                    run.step.release(self.optimizer)
                    run.take_steps(rate)
                    self.ema.apply(self.averaged)
                    run.after_step()
            message = run.finish()
            self.ema.apply(self.averaged)
            run.result.recordings = sum(step.frozen.n_recordings for step in self.frozen.values())
        if message:
            warn(message)
        return run.result

    def reset(self) -> None:
        """Go back to step 0, and keep the recordings of steps."""
        for name, value in self.initial.items():
            self.field[name] = dr.copy(value)
        self.ema.average = EMA(self.field, self.ema.decay).average
        self.ema.apply(self.averaged)
        if self.progress is not None:
            self.optimizer.update(self.field)
            for name in self.initial:
                self.optimizer.reset(name)
            for step in self.frozen.values():
                step.scaler = None if step.scaler is None else LossScaler(step.float32)
            self.progress = None

    def _prepared(self, settings: tuple) -> Run:
        """The run, with the step of these ``settings``."""
        if settings not in self.frozen:
            self.frozen[settings] = self._step(*settings)
        step = self.frozen[settings]
        if self.progress is None:
            self.optimizer.update(self.field)
            self.progress = Run(step, 0, self.seed, [DivergenceMonitor()])
        step.scaler = self.progress.step.scaler  # all settings share one loss scale
        self.progress.step = step
        return self.progress

    def _step(self, samples: int, vertices: int, tail: int, sensor: int) -> Step:
        # These functions refer to as little as possible: all arrays that they refer to are inputs of the frozen step.
        scene, averaged, output = self.scene, self.averaged, self.output
        camera, ending = Camera(scene.sensors()[sensor], samples), Ending(tail)

        def batch(key: Key) -> tuple:
            """Inputs of the field, and targets."""
            with dr.suspend_grad():
                ray, number, sampler = camera.draw(key, vertices)
                paths = trace(scene, sampler, ray, ending, query=number)
                rest = output(averaged, paths.end.interaction(), paths.end.valid)
                target = dr.fma(paths.weight, rest, paths.radiance)
                learn = paths.query.valid & dr.all(dr.isfinite(target))
                question = output.ask(paths.query.interaction(), learn)
                target = dr.select(learn, target, 0)
                # otherwise every kernel of the training would trace the paths again
                dr.eval(question, target)
                return question, target

        def objective(field: NeuralField, drawn: tuple, key: Key) -> Any:
            question, target = drawn
            return relative_l2_luminance(output.answer(field, question, key) / output.scale, target / output.scale)

        return Step(self.field, self.optimizer, batch, Options(objective=objective, ema=self.ema))
