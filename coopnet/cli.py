"""The ``coopnet`` command: look at the machine, learn an image, draw it.

Errors are one line on standard error that begins with ``coopnet: error:``. Exit codes: 0 done, 1 failed, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from . import backend as backends
from . import command

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


class Backend(str, Enum):
    auto = "auto"
    llvm = "llvm"
    cuda = "cuda"


class Encoding(str, Enum):
    sinusoidal = "sinusoidal"
    triangular = "triangular"
    hashgrid = "hashgrid"
    identity = "identity"


class UsageError(Exception):
    """Arguments that make no sense: exit code 2."""


class Failure(Exception):
    """Arguments that make sense, but did not work out: exit code 1."""


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
    except Stopped:
        return 130
    except KeyboardInterrupt:
        return _complain(INTERRUPTED, 130)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the interpreter's own flush at exit
        return 1
    except UsageError as error:
        return _complain(error, 2)
    except (Failure, OSError, ImportError, MemoryError, backends.BackendError, ValueError, TypeError) as error:
        return _complain(_text(error), 1)
    except Exception as error:
        # typer's own errors: unknown options, missing arguments, values that don't parse
        if hasattr(error, "format_message"):
            return _complain(error.format_message(), 2)
        if type(error).__name__ == "Abort":
            return _complain(INTERRUPTED, 130)
        if isinstance(error, RuntimeError):  # Dr.Jit's only kind
            from .training.interrupts import caused_by_interrupt

            return _complain(INTERRUPTED, 130) if caused_by_interrupt(error) else _complain(_text(error), 1)
        raise
    if code == 130:  # typer's silent way to say that there was a Ctrl-C
        return _complain(INTERRUPTED, 130)
    return code if isinstance(code, int) else 0


def _complain(what: Any, code: int) -> int:
    print("coopnet: error:", " ".join(str(what).split()), file=sys.stderr)
    return code


def _text(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    return str(error) or type(error).__name__


# ---- checks of arguments ------------------------------------------------


def _whole(name: str, least: int, most: int) -> Callable[[int | None], int | None]:
    def check(value: int | None) -> int | None:
        if value is not None and not least <= value <= most:
            raise UsageError(f"{name} is {value}; a whole number from {least} to {most} is needed.")
        return value

    return check


def _dropout(value: float) -> float:
    if not 0 <= value < 1:
        raise UsageError(f"--dropout is {value}; a probability in [0, 1) is needed.")
    return value


def _pixels(value: float) -> float:
    if not 0 < value <= 1:
        raise UsageError(f"--pixels is {value}; a fraction in (0, 1] is needed.")
    return value


def _lr(value: float) -> float:
    if not 0 < value < math.inf:
        raise UsageError(f"--lr is {value}; a positive number is needed.")
    return value


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of ``"640x480"``."""
    match = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text.strip())
    width, height = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (width and height):
        raise UsageError(f"--size is {text!r}; two positive whole numbers such as 640x480 are needed.")
    if width * height > MAX_PIXELS:
        raise UsageError(f"--size is {text!r}, {width * height} pixels; at most {MAX_PIXELS} are possible.")
    return width, height


def _prepare_directory(path: Path) -> None:
    """Make ``path`` and see that files can be made in it: before the work rather than after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".coopnet.{secrets.token_hex(6)}.tmp"
        probe.touch(exist_ok=False)
        probe.unlink()
    except FileExistsError:
        raise Failure(f"{str(path)!r} is a file; a directory is needed for the results.") from None
    except NotADirectoryError:
        raise Failure(f"{str(path)!r} lies below a file; a directory is needed for the results.") from None
    except OSError as error:
        raise Failure(f"cannot write to the directory {str(path)!r}: {error.strerror}.") from None


@contextmanager
def _about(path: Path) -> Any:
    """Names the file in errors that the library words for programmers."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        text = _text(error)
        text = re.sub(r"^(load|read|fit|fit_image|construct): ", "", text)
        raise Failure(text if str(path) in text else f"{str(path)!r}: {text}") from None


# ---- commands -----------------------------------------------------------


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
    backend: Annotated[Backend, typer.Option(help="Where to run.")] = Backend.auto,
    steps: Annotated[int, typer.Option(help="Training steps.", callback=_whole("--steps", 1, 2**31))] = 500,
    width: Annotated[int, typer.Option(help="Units per layer.", callback=_whole("--width", 1, 1024))] = 64,
    depth: Annotated[int, typer.Option(help="Hidden layers.", callback=_whole("--depth", 1, 64))] = 2,
    encoding: Annotated[Encoding, typer.Option(help="Of the coordinates.")] = Encoding.hashgrid,
    dropout: Annotated[float, typer.Option(help="Drop probability in [0, 1).", callback=_dropout)] = 0.1,
    pixels: Annotated[
        float, typer.Option(metavar="FRACTION", help="Of the pixels to train on, in (0, 1].", callback=_pixels)
    ] = 0.2,
    batch: Annotated[int, typer.Option(help="Pixels per step.", callback=_whole("--batch", 1, 2**24))] = 16384,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.", callback=_lr)] = 5e-3,
    seed: Annotated[int, typer.Option(help="Of everything random.", callback=_whole("--seed", 0, 2**64 - 1))] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in DIR.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Learn IMAGE from a random fraction of its pixels, and measure it on the others.

    Writes reconstruction.png, comparison.png, loss.png and field.safetensors to DIR. Transparent pixels are laid
    over white. Ctrl-C keeps a checkpoint to --resume from.
    """
    from . import image as images

    _check_dropout(dropout)
    with _about(image):
        values = images.load(image)
    height, columns, channels = values.shape
    if height * columns < 2:
        raise Failure(f"{str(image)!r} has a single pixel; at least 2 are needed.")
    _prepare_directory(output)
    name = backends.require(backend.value)
    kind = "grey" if channels == 1 else "RGB"
    print(f"{image}: {columns} x {height} pixels, {kind}; training on {100 * pixels:.3g} % of them, on {name.upper()}")
    with _about(output / "field.safetensors"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        result = images.fit_image(
            values,
            output,
            backend=name,
            steps=steps,
            width=width,
            depth=depth,
            encoding=encoding.value,
            dropout=dropout,
            fraction=pixels,
            batch=batch,
            lr=lr,
            seed=seed,
            resume=resume,
            progress=not quiet and sys.stderr.isatty(),
        )
    training = result.training
    for warning in said:
        if str(warning.message) != training.message:
            print("coopnet: warning:", *str(warning.message).split(), file=sys.stderr)
    if training.stopped == "diverged":
        what = training.message.split(". ")[0].removeprefix("fit: ")
        raise Failure(f"{what}; a smaller --lr than {lr:g} usually helps. Nothing was drawn or written since.")
    if training.stopped == "interrupt" and not result.files["field"].exists():
        print(f"stopped after step {training.steps} of {steps}; no checkpoint was written")
        raise Stopped
    if training.stopped == "interrupt":
        words = ["coopnet", "fit", str(image), "-o", str(output), "--backend", name]
        given = {
            "--steps": steps, "--width": width, "--depth": depth, "--encoding": encoding.value, "--dropout": dropout,
            "--pixels": pixels, "--batch": batch, "--lr": lr, "--seed": seed,
        }  # fmt: skip
        words += [str(v) for pair in given.items() for v in pair] + ["--resume"]
        print(f"stopped after step {training.steps} of {steps}; the checkpoint is {result.files['field']}")
        print(f"go on with: {shlex.join(words)}")
        raise Stopped
    print(f"{training.steps} steps in {training.seconds:.1f} s, final loss {training.losses[-1]:.3g}")
    print(f"PSNR on training pixels: {result.psnr_training:.2f} dB")
    if result.psnr_held_out is None:
        print("PSNR on held-out pixels: none were held out")
    else:
        print(f"PSNR on held-out pixels: {result.psnr_held_out:.2f} dB")
    for path in result.files.values():
        print(f"wrote {path}")


@app.command()
def render(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="field.safetensors of coopnet fit.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The picture to write.")],
    size: Annotated[str, typer.Option(metavar="WxH", help="Its size in pixels.")],
    mc_samples: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Average K dropout masks; also writes uncertainty.png.",
            callback=_whole("--mc-samples", 2, 2**24),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the masks.", callback=_whole("--seed", 0, 2**64 - 1))] = 0,
    backend: Annotated[Backend, typer.Option(help="Where to run.")] = Backend.auto,
) -> None:  # fmt: skip
    """Draw a checkpoint at any size. The learned image is stretched to WxH.

    With --mc-samples the field is evaluated K times with K dropout masks; FILE gets the mean, and uncertainty.png
    beside it (FILE_uncertainty.png if FILE has that name itself) shows the standard deviation.
    """
    width, height = parse_size(size)
    from . import image as images
    from .image import evaluate, files, learn

    if output.suffix.lower() not in files.writable_formats():
        raise UsageError(f"--output is {str(output)!r}; its suffix must be that of an image format, such as .png.")
    if output.is_dir():
        raise Failure(f"{str(output)!r} is a directory; the name of a picture is needed.")
    name = backends.require(backend.value)
    with _about(checkpoint):
        field, noted = learn.load_image_field(checkpoint, name)
    if mc_samples and not _has_dropout(field):
        raise Failure(
            f"{str(checkpoint)!r} has no dropout, so all evaluations are equal and --mc-samples has no meaning; "
            f"fit with --dropout, or render without --mc-samples."
        )
    _prepare_directory(output.parent)
    region = evaluate.box(*_noted_size(noted, width, height))
    if mc_samples is None:
        picture = images.render(field, width, height, region)
    else:
        picture, deviation = images.render_mc(field, width, height, mc_samples, seed, region)
    bad = picture.size - int(np.isfinite(picture).sum())
    if bad:
        raise Failure(
            f"{str(checkpoint)!r} gives {bad} of {picture.size} values that are not finite; nothing is drawn."
        )
    with _about(output):
        files.save(output, picture)
    print(f"wrote {output}")
    if mc_samples is not None:
        from .image import plots

        other = output.with_name("uncertainty.png")
        if other == output:
            other = output.with_name(f"{output.stem}_uncertainty.png")
        plots.uncertainty(other, deviation, mc_samples)
        print(f"wrote {other}")
        print(f"mean standard deviation {float(deviation.mean()):.4f}")


def _noted_size(noted: dict[str, Any], width: int, height: int) -> tuple[int, int]:
    """Size of the image that was learned, or the one asked for if the checkpoint does not say."""
    stored = noted.get("width"), noted.get("height")
    if all(isinstance(v, int) and not isinstance(v, bool) and 0 < v < 2**32 for v in stored):
        return stored  # type: ignore[return-value]
    return width, height


def _check_dropout(p: float) -> None:
    from .random.law import MaskLaw

    try:
        MaskLaw(p, where="--dropout")
    except ValueError as error:
        raise UsageError(str(error)) from None


def _has_dropout(field: Any) -> bool:
    from .nn.dropout import Dropout
    from .nn.tree import children

    return any(isinstance(layer, Dropout) and layer.active() for layer in children(field))


if __name__ == "__main__":
    sys.exit(main())
