"""The ``coopnet`` command: look at the machine, learn an image, draw it.

Errors are one line on standard error that begins with ``coopnet: error:``. Exit codes: 0 done, 1 failed, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from . import backend as backends
from . import command
from .checks import ensure, is_int
from .random.law import MaskLaw
from .training.interrupts import caused_by_interrupt
from .uncertainty import has_dropout

try:
    import typer
except ImportError:
    sys.exit('coopnet: error: the command line needs the package typer; run pip install "coopnet[cli]"')

INTERRUPTED = "interrupted."
MAX_PIXELS = 10**8  #: of a rendered picture, held in memory as a whole

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Neural fields with dropout on Dr.Jit.",
)


class Stopped(Exception):
    """Ctrl-C, about which all has been said: exit code 130."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command with ``arguments`` (those of the process if ``None``); returns the exit code."""
    with suppress(AttributeError, ValueError):  # a pipe that cannot show × should not stop us
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        command.imported()
        code = app(args=arguments or ["--help"], prog_name="coopnet", standalone_mode=False)
        if code == 130:  # typer's silent way to say that there was a Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except Stopped:
        return 130
    except (KeyboardInterrupt, typer.Abort):
        return _complain(INTERRUPTED, 130)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the interpreter's own flush at exit
        return 1
    except RuntimeError as error:  # Dr.Jit's only kind
        return _complain(INTERRUPTED, 130) if caused_by_interrupt(error) else _complain(_text(error), 1)
    except (OSError, ImportError, MemoryError, ValueError, TypeError) as error:
        return _complain(_text(error), 1)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _complain(error.format_message(), 2)  # typer's: what the arguments are, or should be


def _complain(what: str, code: int) -> int:
    print("coopnet: error:", *what.split(), file=sys.stderr)
    return code


def _text(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    return str(error) or type(error).__name__


# ---- checks of arguments ------------------------------------------------


def _drop_probability(p: float) -> float:
    try:
        MaskLaw(p)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("dropout: ")) from None
    return p


def _fraction(share: float) -> float:
    ensure(0 < share <= 1, f"{share} is no fraction in (0, 1].", typer.BadParameter)
    return share


def _positive(number: float) -> float:
    ensure(0 < number < math.inf, f"{number} is no positive number.", typer.BadParameter)
    return number


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of ``"640x480"``."""
    match = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text.strip())
    width, height = (int(match[1]), int(match[2])) if match else (0, 0)
    count, bad = width * height, typer.BadParameter
    ensure(count, f"{text!r}; two positive whole numbers such as 640x480 are needed.", bad)
    ensure(count <= MAX_PIXELS, f"{text!r}, {count} pixels; at most {MAX_PIXELS} are possible.", bad)
    return width, height


def _prepare_directory(path: Path) -> None:
    """Make ``path`` and see that files can be made in it: before the work rather than after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except (FileExistsError, NotADirectoryError) as error:
        what = "is a file" if isinstance(error, FileExistsError) else "lies below a file"
        raise OSError(f"{str(path)!r} {what}; a directory is needed for the results.") from None
    except OSError as error:
        raise OSError(f"cannot write to the directory {str(path)!r}: {error.strerror}.") from None


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Names the file in errors that the library words for programmers."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        text = re.sub(r"^(load|read|fit|fit_image|construct): ", "", _text(error))
        raise ValueError(text if str(path) in text else f"{str(path)!r}: {text}") from None


# ---- commands -----------------------------------------------------------

_BACKEND = Annotated[Literal["auto", "llvm", "cuda"], typer.Option(help="Where to run.")]
_ENCODING = Annotated[
    Literal["sinusoidal", "triangular", "hashgrid", "identity"], typer.Option(help="Of the coordinates.")
]


@app.command()
def info() -> None:
    """Show what is here: Dr.Jit, LLVM, CUDA, packages, and what mends what is missing.

    The exit code is 0 whatever is missing: finding out is what the command is for.
    """
    print(backends.format_info(backends.info()))


@app.command()
def fit(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture: PNG, JPEG, TIFF and others.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where results go; made if missing.")],
    backend: _BACKEND = "auto",
    steps: Annotated[int, typer.Option(help="Training steps.", min=1, max=2**31)] = 500,
    width: Annotated[int, typer.Option(help="Units per layer.", min=1, max=1024)] = 64,
    depth: Annotated[int, typer.Option(help="Hidden layers.", min=1, max=64)] = 2,
    encoding: _ENCODING = "hashgrid",
    dropout: Annotated[float, typer.Option(help="Drop probability in [0, 1).", callback=_drop_probability)] = 0.1,
    pixels: Annotated[
        float, typer.Option(metavar="FRACTION", help="Of the pixels to train on, in (0, 1].", callback=_fraction)
    ] = 0.2,
    batch: Annotated[int, typer.Option(help="Pixels per step.", min=1, max=2**24)] = 16384,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.", callback=_positive)] = 5e-3,
    seed: Annotated[int, typer.Option(help="Of everything random.", min=0, max=2**64 - 1)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in DIR.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Learn IMAGE from a random fraction of its pixels, and measure it on the others.

    Writes reconstruction.png, comparison.png, loss.png and field.safetensors to DIR. Transparent pixels are laid
    over white. Ctrl-C keeps a checkpoint to --resume from.
    """
    from . import image as images

    with _about(image):
        values = images.load(image)
    height, columns, channels = values.shape
    ensure(height * columns > 1, f"{str(image)!r} has a single pixel; at least 2 are needed.")
    _prepare_directory(output)
    name = backends.require(backend)
    kind = "grey" if channels == 1 else "RGB"
    print(f"{image}: {columns} x {height} pixels, {kind}; training on {100 * pixels:.3g} % of them, on {name.upper()}")
    settings: dict[str, Any] = {
        "backend": name, "steps": steps, "width": width, "depth": depth, "encoding": encoding, "dropout": dropout,
        "batch": batch, "lr": lr, "seed": seed,
    }  # fmt: skip
    with _about(output / "field.safetensors"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        bar = not quiet and sys.stderr.isatty()
        result = images.fit_image(values, output, fraction=pixels, resume=resume, progress=bar, **settings)
    training = result.training
    for warning in said:
        if str(warning.message) != training.message:
            print("coopnet: warning:", *str(warning.message).split(), file=sys.stderr)
    if training.stopped == "diverged":
        what = training.message.split(". ")[0].removeprefix("fit: ")
        raise ValueError(f"{what}; a smaller --lr than {lr:g} usually helps. Nothing was drawn or written since.")
    if training.stopped == "interrupt":
        checkpoint = result.files["field"]
        written = "no checkpoint was written"
        if checkpoint.exists():
            words = ["coopnet", "fit", str(image), "-o", str(output)]
            words += [
                word for key, value in (settings | {"pixels": pixels}).items() for word in (f"--{key}", str(value))
            ]
            written = f"the checkpoint is {checkpoint}\ngo on with: {shlex.join([*words, '--resume'])}"
        print(f"stopped after step {training.steps} of {steps}; {written}")
        raise Stopped
    print(f"{training.steps} steps in {training.seconds:.1f} s, final loss {training.losses[-1]:.3g}")
    print(f"PSNR on training pixels: {result.psnr_training:.2f} dB")
    held_out = "none were held out" if result.psnr_held_out is None else f"{result.psnr_held_out:.2f} dB"
    print(f"PSNR on held-out pixels: {held_out}")
    for path in result.files.values():
        print(f"wrote {path}")


@app.command()
def render(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="field.safetensors of coopnet fit.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The picture to write.")],
    size: Annotated[Any, typer.Option(metavar="WxH", help="Its size in pixels.", parser=parse_size)],
    mc_samples: Annotated[
        int | None,
        typer.Option(metavar="K", help="Average K dropout masks; also writes uncertainty.png.", min=2, max=2**24),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the masks.", min=0, max=2**64 - 1)] = 0,
    backend: _BACKEND = "auto",
) -> None:
    """Draw a checkpoint at any size. The learned image is stretched to WxH.

    With --mc-samples the field is evaluated K times with K dropout masks; FILE gets the mean, and uncertainty.png
    beside it (FILE_uncertainty.png if FILE has that name itself) shows the standard deviation.
    """
    from . import image as images
    from .image import evaluate, files, learn, plots

    what = f"--output is {str(output)!r}; its suffix must be that of an image format, such as .png."
    ensure(output.suffix.lower() in files.writable_formats(), what, typer.BadParameter)
    ensure(not output.is_dir(), f"{str(output)!r} is a directory; the name of a picture is needed.")
    name = backends.require(backend)
    with _about(checkpoint):
        field, noted = learn.load_image_field(checkpoint, name)
    if mc_samples and not has_dropout(field):
        what = "has no dropout, so all evaluations are equal and --mc-samples has no meaning"
        raise ValueError(f"{str(checkpoint)!r} {what}; fit with --dropout, or render without --mc-samples.")
    _prepare_directory(output.parent)
    width, height = size
    learned = noted.get("width"), noted.get("height")
    region = evaluate.box(*(learned if all(is_int(v, 1, 2**32 - 1) for v in learned) else size))
    if mc_samples is None:
        picture = images.render(field, width, height, region)
    else:
        picture, deviation = images.render_mc(field, width, height, mc_samples, seed, region)
    bad = picture.size - int(np.isfinite(picture).sum())
    wrong = f"gives {bad} of {picture.size} values that are not finite; nothing is drawn."
    ensure(bad == 0, f"{str(checkpoint)!r} {wrong}")
    with _about(output):
        files.save(output, picture)
    print(f"wrote {output}")
    if mc_samples is not None:
        taken = output.name == "uncertainty.png"
        other = output.with_name("uncertainty_uncertainty.png" if taken else "uncertainty.png")
        plots.uncertainty(other, deviation, mc_samples)
        print(f"wrote {other}")
        print(f"mean standard deviation {float(deviation.mean()):.4f}")


if __name__ == "__main__":
    sys.exit(main())
