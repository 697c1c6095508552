"""Arguments of several commands, and checks that are made before the work rather than after it."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..checks import ensure
from ..random.law import MaskLaw

MAX_PIXELS = 10**8  #: of a rendered picture, held in memory as a whole


def checkpoint_file(path: Path | None) -> Path | None:
    """The checkpoint ``path``; of a folder of ``coopnet fit``, the one in it."""
    if path is None or not (path / "field.safetensors").is_file():
        return path
    return path / "field.safetensors"


def drop_probability(p: float | None) -> float | None:
    """``p``, if a dropout can have it."""
    if p is None:
        return None
    try:
        MaskLaw(p)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("dropout: ")) from None
    return p


def fraction(share: float | None) -> float | None:
    """``share``, if it is in (0, 1]."""
    ensure(share is None or 0 < share <= 1, f"{share} is not a fraction in (0, 1].", typer.BadParameter)
    return share


def positive(number: float) -> float:
    """``number``, if it is positive and finite."""
    ensure(0 < number < math.inf, f"{number} is not a positive number.", typer.BadParameter)
    return number


def finite(number: float) -> float:
    """``number``, if it is finite."""
    ensure(math.isfinite(number), f"{number} is not a finite number.", typer.BadParameter)
    return number


def parse_folder(text: str) -> Path:
    """A folder. An empty name, as of a variable that was not set, would be the folder one is in."""
    ensure(text, "the name is empty; for this folder, give '.'.", typer.BadParameter)
    return Path(text)


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of ``"640x480"``."""
    match = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text.strip())
    width, height = (int(match[1]), int(match[2])) if match else (0, 0)
    count, bad = width * height, typer.BadParameter
    ensure(count, f"{text!r}; two positive whole numbers such as 640x480 are needed.", bad)
    ensure(count <= MAX_PIXELS, f"{text!r}, {count} pixels; at most {MAX_PIXELS} are possible.", bad)
    return width, height


def parse_view(text: str) -> tuple[float, float]:
    """Azimuth and elevation in degrees of ``"30,20"``."""
    parts = text.split(",")
    try:
        azimuth, elevation = (float(part) for part in parts)
        valid = math.isfinite(azimuth) and -90 < elevation < 90
    except ValueError:
        valid = False
    needed = "an azimuth and an elevation between -90 and 90 degrees, such as 30,20, are needed."
    ensure(valid, f"{text!r}; {needed}", typer.BadParameter)
    return azimuth, elevation


def parse_numbers(text: str) -> tuple[float, ...]:
    """The numbers of ``"0,0,1,0.5"``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}; numbers with commas between them, such as 0,0,1,0.5, are needed."
        ) from None


def check_output(path: Path, suffixes: Iterable[str], needed: str) -> None:
    """Raise unless ``path`` has one of these suffixes, which an error calls ``needed``."""
    problem = f"--output is {str(path)!r}; its suffix must be {needed}."
    ensure(path.suffix.lower() in suffixes, problem, typer.BadParameter)


def check_replaced(path: Path, force: bool, else_: str, others: tuple[str, ...] = ()) -> None:
    """Raise if files exist and ``force`` does not allow to replace them: ``path``, or files ``others`` beside it.

    ``else_`` is the part of the message that says what else the user can do.
    """
    existing = [repr(str(p)) for p in (path, *(path.with_name(name) for name in others)) if p.is_file()]
    names = " and ".join(filter(None, (", ".join(existing[:-1]), *existing[-1:])))
    there = f"{names} {'are' if len(existing) > 1 else 'is'} there already; {else_}, or pass --force to replace"
    ensure(force or not existing, f"{there} {'them' if len(existing) > 1 else 'it'}.", FileExistsError)


def prepare_directory(path: Path, names: tuple[str, ...] = ()) -> None:
    """Make ``path``, and check that files, such as ``names``, can be written there, before the work rather than
    after.
    """
    for taken in (path / name for name in names):
        ensure(not taken.is_dir(), f"{str(taken)!r} is a directory; move it, or choose another --output.", OSError)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except (FileExistsError, NotADirectoryError) as error:
        problem = "is a file" if isinstance(error, FileExistsError) else "lies below a file"
        raise OSError(f"{str(path)!r} {problem}; a directory is needed for the results.") from None
    except OSError as error:
        raise OSError(f"cannot write to the directory {str(path)!r}: {error.strerror}.") from None


_CHECKPOINT = typer.Argument(
    metavar="CHECKPOINT", help="A checkpoint, such as field.safetensors, or the folder of coopnet fit.",
    callback=checkpoint_file,
)  # fmt: skip
CHECKPOINT = Annotated[Path, _CHECKPOINT]
CHECKPOINT_OR_NONE = Annotated[Path | None, _CHECKPOINT]
FORCE = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
REGION = Annotated[
    Any,
    typer.Option(
        metavar="L,T,W,H", help="Part of the plane that is shown, or six numbers: two corners of a box.",
        parser=parse_numbers,
    ),
]  # fmt: skip
SURFACE_VIEW = Annotated[
    Any,
    typer.Option(
        metavar="A,E",
        help="Azimuth and elevation of the camera around a surface, in degrees; default 30,20.",
        parser=parse_view,
    ),
]  # fmt: skip
UP = Annotated[Literal["x", "y", "z"] | None, typer.Option(help="Axis of a surface that points up; default y.")]
BACKEND = Annotated[Literal["auto", "llvm", "cuda"], typer.Option(help="Where to run.")]
