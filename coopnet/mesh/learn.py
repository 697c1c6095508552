"""Learning the signed distance of a mesh from points around it."""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_above, check_choice, check_flag, check_int, check_type, check_unsigned, plain
from ..field import NeuralField
from ..image import files, plots
from ..image.evaluate import arrays, check_maps, in_pieces
from ..image.folder import batches, fit_to, has_ended, own_folder
from ..io import load as load_field
from ..nn import MLP, HashGrid, Identity
from ..training import FitResult
from .distances import draw_samples
from .files import MARGIN, Mesh, load
from .view import render

ENCODINGS = ("hashgrid", "identity")  #: waves of period 1 cannot tell opposite faces of the cube apart
HELD_OUT = 16  #: one point in so many is held out
SIZE = 512  #: of the picture, in pixels


@dataclass
class MeshFit:
    """The result of :func:`fit_mesh`: the field, its quality on held-out points, the files.

    ``error_near`` and ``error_space`` are mean absolute errors of the distance, in units of the longest side of the
    mesh: for points on or near the surface, and for points anywhere in the cube. ``signs`` is the share of the latter
    whose distance has the right sign.
    """

    field: NeuralField
    training: FitResult
    error_near: float = math.nan
    error_space: float = math.nan
    signs: float = math.nan
    files: dict[str, Path] = dataclass_field(default_factory=dict)


def make_field(*, encoding: str = "hashgrid", units: int = 64, depth: int = 2, dropout: float = 0.0) -> NeuralField:
    """A field of 3 coordinates in the unit cube and a signed distance, not built yet.

    >>> mesh.make_field(units=32).build().in_features
    3
    """
    check_choice("mesh.make_field", "encoding", encoding, ENCODINGS)
    layer: Any = Identity()
    if encoding == "hashgrid":
        # 16 levels from 8 to 256 cells along a side: a cell of the finest is a 200th of the longest side
        layer = HashGrid(3, n_levels=16, base_resolution=8, hashmap_size=2**17, per_level_scale=32 ** (1 / 15))
    network = MLP(
        in_features=3 if encoding == "identity" else -1, out_features=1, width=units, depth=depth, dropout=dropout,
        bias=encoding == "identity",
    )  # fmt: skip
    return NeuralField(layer, network)


def fit_mesh(
    mesh: Mesh | str | Path,
    directory: str | Path,
    *,
    backend: str = "auto",
    steps: int = 1000,
    width: int = 64,
    depth: int = 2,
    encoding: str = "hashgrid",
    dropout: float = 0.0,
    points: int = 1 << 18,
    batch: int = 1 << 14,
    lr: float = 5e-3,
    seed: int = 0,
    resume: bool = False,
    progress: bool = True,
) -> MeshFit:
    """Train a field on signed distances to a mesh; write it and a picture of it to ``directory``.

    The loss is the absolute error of the distance, ``coopnet.training.l1``. Three points in four are on or near the
    surface.

    Args:
        mesh: a file, or the result of :func:`coopnet.mesh.load`.
        directory: made if missing. Gets ``field.safetensors``, ``picture.png`` and ``loss.png``.
        backend: ``"auto"``, ``"llvm"`` or ``"cuda"``.
        steps, batch, lr: training steps, points per step, and the learning rate that falls to 0 along half a cosine.
        width, depth, encoding, dropout: of the field, see :func:`make_field`.
        points: number of points of :func:`draw_samples`; one in 16 is held out to measure quality.
        seed: of the weights, the points, the batches and the masks.
        resume: continue from ``field.safetensors`` in ``directory``, which must be of the same mesh and settings.
        progress: show a progress bar, and say when the picture is drawn.

    Returns:
        A :class:`MeshFit`. After Ctrl-C, ``training.stopped`` is ``"interrupt"`` and only the checkpoint is written. If
        training diverged, it is ``"diverged"``, and nothing is drawn.

    Raises:
        ValueError, TypeError: arguments out of range; a checkpoint that does not fit.
        OSError: files that cannot be read or written; another run is writing to ``directory``.
        BackendError: no such backend here.
        ImportError: a missing package.

    >>> small = dict(encoding="identity", width=16, steps=200, points=4000, progress=False)
    >>> found = mesh.fit_mesh(mesh.load("cube.obj"), "out", **small)
    >>> sorted(found.files)
    ['field', 'loss', 'picture']
    """
    mesh = load(mesh) if isinstance(mesh, (str, Path)) else mesh
    check_type("fit_mesh", "mesh", mesh, Mesh, "a file or a mesh of coopnet.mesh.load()")
    batch, steps, points = (
        check_int("fit_mesh", name, value, minimum, maximum)
        for name, value, minimum, maximum in (
            ("batch", batch, 1, 2**24), ("steps", steps, 1, 2**32 - 1), ("points", points, 1000, 2**24),
        )
    )  # fmt: skip
    lr, seed = check_above("fit_mesh", "lr", lr), check_unsigned("fit_mesh", "seed", seed)
    check_choice("fit_mesh", "encoding", encoding, ENCODINGS)
    check_flag("fit_mesh", "resume", resume)
    check_flag("fit_mesh", "progress", progress)
    field = make_field(encoding=encoding, units=width, depth=depth, dropout=dropout).build(backend, seed=seed)
    digest = hashlib.sha256(mesh.vertices.tobytes() + mesh.faces.tobytes()).hexdigest()
    metadata = {
        "fit": {"mesh": digest, "points": points, "batch": batch, "lr": lr, "dropout": plain(dropout)},
        "mesh": {"centre": list(mesh.centre), "scale": mesh.scale, "watertight": mesh.watertight},
    }
    with own_folder("fit_mesh", directory, metadata, resume, steps) as checkpoint:
        samples = draw_samples(mesh, points, seed)
        held_out = np.arange(points) % HELD_OUT == HELD_OUT - 1
        chosen = ~held_out
        table = [arrays(field).Float(v[chosen]) for v in (*samples.points.T, samples.distances)]
        options = {"loss": "l1", "seed": seed, "resume": resume, "metadata": metadata, "progress": progress}
        result = fit_to(checkpoint, field, batches(table, 3, batch), steps, lr, **options)
        outcome = MeshFit(field, result)
        if not has_ended(outcome, checkpoint):
            return outcome
        truth = samples.distances[held_out]
        predicted, uniform = evaluate(field, samples.points[held_out]), samples.uniform[held_out]
        error = np.abs(predicted - truth) / (1 - 2 * MARGIN)
        outcome.error_near, outcome.error_space = float(error[~uniform].mean()), float(error[uniform].mean())
        outcome.signs = float(np.mean((predicted < 0) == (truth < 0), where=uniform))
        outcome.files |= {name: checkpoint.with_name(f"{name}.png") for name in ("picture", "loss")}
        if progress:  # rays of a field that has hardly been trained take all of their steps
            print("drawing picture.png", file=sys.stderr)
        files.save(outcome.files["picture"], render(field, SIZE, SIZE))
        plots.loss(outcome.files["loss"], result)
        return outcome


def evaluate(field: NeuralField, points: np.ndarray) -> np.ndarray:
    """Values of a field with one output at ``points``, ``(n, 3)``."""
    single = arrays(field).Float

    def draw(start: int, n: int) -> list:
        return [field([single(np.ascontiguousarray(x)) for x in points[start : start + n].T])]

    return in_pieces(len(points), draw)[0][:, 0]


def load_surface(path: str | Path, backend: str = "auto") -> NeuralField:
    """A field of 3 coordinates and one value from a checkpoint.

    Raises as :func:`coopnet.load`; also ``ValueError`` if it has another number of either.

    >>> cn.save("surface.safetensors", mesh.make_field().build())
    >>> mesh.load_surface("surface.safetensors").in_features
    3
    """
    field = load_field(path, backend)
    check_maps(path, field, "a surface", 3, (1,))
    return field
