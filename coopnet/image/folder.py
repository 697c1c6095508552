"""Fits whose results go to a folder: the common parts of learning pictures and meshes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import drjit as dr

from ..checks import ensure
from ..field import NeuralField
from ..io import read
from ..io.checkpoint import TRAIN
from ..random.key import Key
from ..training import FitResult, cosine, fit
from ..training.sampling import integers

#: Entries of a checkpoint's metadata that are digests, and of what.
_DIGESTS = {"pixels": "image", "mesh": "mesh"}


def check_packages(where: str) -> None:
    """Raise ``ImportError`` if checkpoints cannot be written, before the training rather than after it."""
    if importlib.util.find_spec("safetensors") is None:
        hint = "checkpoints need the package safetensors; run pip install 'coopnet[cli]'."
        raise ImportError(f"{where}: {hint}", name="safetensors")


def make_folder(directory: str | Path, metadata: dict[str, Any], resume: bool, steps: int) -> Path:
    """The checkpoint in ``directory``, which is made if missing; if a run is to be resumed, raises unless that is
    possible.
    """
    checkpoint = Path(directory) / "field.safetensors"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if resume:
        check_same_run(checkpoint, metadata, steps)
    return checkpoint


def fit_to(checkpoint: Path, field: NeuralField, batch: Callable, steps: int, lr: float, **options: Any) -> FitResult:
    """:func:`coopnet.fit` with a rate that falls to 0 along half a cosine, and ``checkpoint``."""
    return fit(field, batch, steps, lr=cosine(lr, steps), checkpoint=checkpoint, **options)


def batches(columns: Sequence[Any], inputs: int, size: int) -> Callable[[Key], tuple[list, list]]:
    """Traced code that draws ``size`` rows of a table: the first ``inputs`` columns are coordinates, others targets.

    Args:
        columns: single-precision arrays of Dr.Jit.
    """
    table = list(columns)
    dr.eval(table)
    leaf, count = type(table[0]), dr.width(table[0])

    def batch(key: Key) -> tuple[list, list]:
        i = integers(count, key, dr.uint32_array_t(leaf), size)
        values = [dr.gather(leaf, v, i) for v in table]
        return values[:inputs], values[inputs:]

    return batch


def check_same_run(checkpoint: Path, metadata: dict[str, Any], steps: int) -> None:
    """Raise unless ``checkpoint`` is of the same image or mesh and settings, those in ``metadata``, and has not taken
    more than ``steps``.
    """
    missing = f"there is no {str(checkpoint)!r} to resume from; run without --resume first."
    ensure(checkpoint.exists(), missing, FileNotFoundError)
    _, stored, tensors = read(checkpoint)
    for group, wanted in metadata.items():
        given: Any = stored.get(group)
        ensure(isinstance(given, dict), f"cannot resume {str(checkpoint)!r}: it was not written by coopnet fit.")
        for name, value in wanted.items():
            ensure(name in given, f"cannot resume {str(checkpoint)!r}: it was not written by coopnet fit.")
            if given[name] != value:
                problem = f"its {name} is {given[name]!r}, not {value!r}"
                problem = f"it is of another {_DIGESTS[name]}, not this one" if name in _DIGESTS else problem
                hint = "resume with what it was begun with, or begin another run in another folder"
                raise ValueError(f"cannot resume {str(checkpoint)!r}: {problem}; {hint}.")
    taken = len(tensors.get(f"{TRAIN}losses", ()))
    ensure(taken <= steps, f"{str(checkpoint)!r} is at step {taken} already; steps={steps} is less.")
