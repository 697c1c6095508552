"""Fits whose results go to a folder: the common parts of learning pictures and meshes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import drjit as dr

from ..checks import ensure
from ..field import NeuralField
from ..io import read
from ..io.checkpoint import TRAIN, require_safetensors
from ..io.files import file_name
from ..random.key import Key
from ..training import FitResult, cosine, fit
from ..training.sampling import integers

#: Entries of a checkpoint's metadata that are digests, and of what.
_DIGESTS = {"pixels": "image", "mesh": "mesh"}


@contextmanager
def own_folder(
    where: str, directory: str | Path, metadata: dict[str, Any], resume: bool, steps: int
) -> Iterator[Path]:  # fmt: skip
    """A block in which no other run writes to ``directory``, which is made if missing; it gets the checkpoint there.

    Raises if there is another run, if no checkpoint can be written, or a run that is to be resumed cannot.
    """
    require_safetensors()
    checkpoint = Path(file_name(directory, where, "directory")) / "field.safetensors"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with _locked(where, checkpoint.parent):
        if resume:
            check_same_run(where, checkpoint, metadata, steps)
        yield checkpoint


@contextmanager
def _locked(where: str, folder: Path) -> Iterator[None]:
    """A block in which ``folder`` has a lock, which the system removes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        problem = f"{where}: directory is {str(folder)!r}, to which another run writes"
        raise OSError(f"{problem}; wait for its end, or choose another one.") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def has_ended(outcome: Any, checkpoint: Path) -> bool:
    """Did the training of ``outcome`` reach its end? Its files get the ``checkpoint``, unless it diverged."""
    stopped = outcome.training.stopped
    if stopped != "diverged":
        outcome.files["field"] = checkpoint
    return stopped not in ("diverged", "interrupt")


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


def check_same_run(where: str, checkpoint: Path, metadata: dict[str, Any], steps: int) -> None:
    """Raise unless ``checkpoint`` is of the same image or mesh and settings, those in ``metadata``, and has not taken
    more than ``steps``.
    """
    missing = f"{where}: there is no {str(checkpoint)!r} to resume from; pass resume=False."
    ensure(checkpoint.exists(), missing, FileNotFoundError)
    _, stored, tensors = read(checkpoint)
    problem = f"{where}: cannot resume {str(checkpoint)!r}"
    unknown = f"{problem}: it was not written by fit_image or fit_mesh."
    for group, wanted in metadata.items():
        given: Any = stored.get(group)
        ensure(isinstance(given, dict), unknown)
        for name, value in wanted.items():
            ensure(name in given, unknown)
            if given[name] != value:
                other = f"its {name} is {given[name]!r}, not {value!r}"
                other = f"it is of another {_DIGESTS[name]}, not this one" if name in _DIGESTS else other
                hint = "resume with the original settings, or begin another run in another folder"
                raise ValueError(f"{problem}: {other}; {hint}.")
    taken = len(tensors.get(f"{TRAIN}losses", ()))
    ensure(taken <= steps, f"{where}: {str(checkpoint)!r} is at step {taken} already; steps={steps} is less.")
