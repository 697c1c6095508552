"""``coopnet fit``: learn an image, or the signed distance of a mesh."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .. import backend as backends
from ..checks import ensure
from ..io.checkpoint import require_safetensors
from ..training import FitResult
from ..training.interrupts import caused_by_interrupt
from . import arguments as args
from .errors import Stopped, about, telling_warnings

MESHES = (".obj", ".ply", ".stl")
IMAGE_PICTURES = ("reconstruction.png", "comparison.png", "loss.png")  #: written beside the checkpoint
MESH_PICTURES = ("picture.png", "loss.png")
#: Difference in dB between the pixels that were learned and the others from which on a hint is printed.
BY_HEART = 10
#: Defaults, for images and for meshes.
DEFAULTS: dict[str, tuple] = {
    "steps": (500, 1000), "pixels": (0.2, None), "points": (None, 1 << 18),
}  # fmt: skip
_ENCODING = Annotated[
    Literal["sinusoidal", "triangular", "hashgrid", "identity"],
    typer.Option(help="Encoding of coordinates; hashgrid or identity for meshes."),
]


def fit(
    source: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A picture (PNG, JPEG, TIFF and others) or a mesh (OBJ, PLY, STL)."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder for results, created if missing; default FILE's name without its suffix, here.",
            parser=args.parse_folder,
        ),
    ] = None,
    backend: args.BACKEND = "auto",
    steps: Annotated[
        int | None, typer.Option(help="Training steps; default 500 for images, 1000 for meshes.", min=1, max=2**31)
    ] = None,
    width: Annotated[int, typer.Option(help="Units per layer.", min=1, max=1024)] = 64,
    depth: Annotated[int, typer.Option(help="Hidden layers.", min=1, max=64)] = 2,
    encoding: _ENCODING = "hashgrid",
    dropout: Annotated[
        float,
        typer.Option(
            help="Drop probability in [0, 1), for uncertainty, or few or noisy pixels; costs quality with hashgrid.",
            callback=args.drop_probability,
        ),
    ] = 0.0,
    pixels: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Fraction of the pixels to train on, in (0, 1]; default 0.2.",
            callback=args.fraction,
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of points with a known distance to the mesh; default 262144.", min=1000, max=2**24
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Pixels or points per step.", min=1, max=2**24)] = 16384,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.", callback=args.positive)] = 5e-3,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.", min=0, max=2**64 - 1)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in DIR.")] = False,
    force: args.FORCE = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Learn FILE: an image from a random fraction of its pixels, measured on the others, or a mesh's signed distance.

    Of an image, writes reconstruction.png, comparison.png, loss.png and field.safetensors to DIR; transparent pixels
    are laid over white. Of a mesh, writes picture.png, loss.png and field.safetensors; needs coopnet[mesh]. Ctrl-C
    and SIGTERM keep a checkpoint to --resume from. Existing files are replaced with --force only.
    """
    ensure(not (resume and force), "--resume continues from a checkpoint, and --force replaces it.", typer.BadParameter)
    mesh = source.suffix.lower() in MESHES
    other, kind, option = ("pixels", "a mesh", "--points") if mesh else ("points", "an image", "--pixels")
    waves = f"{str(source)!r} is a mesh, and --encoding {encoding} repeats itself; hashgrid or identity is needed."
    ensure(not mesh or encoding in ("hashgrid", "identity"), waves, typer.BadParameter)
    given = {"steps": steps, "pixels": pixels, "points": points}
    unused = f"--{other} is not for {kind}; {option} is."
    ensure(given[other] is None, f"{str(source)!r} is {kind}, and {unused}", typer.BadParameter)
    chosen: dict[str, Any] = {name: DEFAULTS[name][mesh] if value is None else value for name, value in given.items()}
    del chosen[other]
    settings: dict[str, Any] = {
        "backend": backend, "steps": chosen.pop("steps"), "width": width, "depth": depth, "encoding": encoding,
        "dropout": dropout, "batch": batch, "lr": lr, "seed": seed,
    }  # fmt: skip
    run = {"resume": resume, "progress": not quiet and sys.stderr.isatty()}
    output = Path(source.stem) if output is None else output
    if not resume:
        checkpoint, pictures = output / "field.safetensors", MESH_PICTURES if mesh else IMAGE_PICTURES
        hint = "--resume its training, choose another --output" if checkpoint.is_file() else "choose another --output"
        args.check_replaced(checkpoint, force, hint, pictures)
    with terminated_like_interrupted():
        (_fit_mesh if mesh else _fit_image)(source, output, chosen, settings, run)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """A block in which SIGTERM, which batch systems send, does what Ctrl-C does: a checkpoint is written."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _prepare(output: Path, pictures: tuple[str, ...], resume: bool) -> None:
    """Everything that can fail before the training is done here, so that errors leave no directory behind."""
    checkpoint = output / "field.safetensors"
    require_safetensors()
    missing = f"there is no {str(checkpoint)!r} to resume from; run without --resume first."
    ensure(not resume or output.is_file() or checkpoint.exists(), missing, FileNotFoundError)
    args.prepare_directory(output, (checkpoint.name, *pictures))


def _fit_image(source: Path, output: Path, chosen: dict, settings: dict, run: dict) -> None:
    from .. import image as images
    from ..image.learn import training_count

    with about(source):
        try:
            values = images.load(source)
        except ValueError as error:
            known = ", ".join(suffix[1:].upper() for suffix in MESHES)
            hint = f"; meshes are those with the suffix of {known} (in Python, coopnet.mesh.load reads others)"
            if source.suffix.lower() == ".json":
                hint = "; for a configuration, use coopnet convert, or coopnet.from_config in Python"
            hint = hint if "not an image" in str(error) else ""
            raise ValueError(f"{str(error).rstrip('.')}{hint}.") from None
    height, columns, channels = values.shape
    ensure(height * columns > 1, f"{str(source)!r} has a single pixel; at least 2 are needed.")
    _prepare(output, IMAGE_PICTURES, run["resume"])
    settings["backend"] = backends.require(settings["backend"])
    kind, count = "grey" if channels == 1 else "RGB", height * columns
    share = 100 * training_count(count, chosen["pixels"]) / count
    where = settings["backend"].upper()
    print(f"{source}: {columns} x {height} pixels, {kind}; training on {share:.3g} % of them, on {where}")
    with learning(source, output, settings | chosen, run["resume"]) as silent:
        result = images.fit_image(values, output, fraction=chosen["pixels"], **run, **settings)
        silent.append(result.training.message)
    _ended(result.training, result.files, source, output, settings | chosen)
    print(f"PSNR on training pixels: {result.psnr_training:.2f} dB")
    held_out = "none were held out" if result.psnr_held_out is None else f"{result.psnr_held_out:.2f} dB"
    print(f"PSNR on held-out pixels: {held_out}")
    seen, unseen = result.psnr_training, result.psnr_held_out
    if seen is not None and unseen is not None and seen - unseen > BY_HEART:
        hint = "it has memorized the training pixels; try more --pixels, another --encoding, or --dropout"
        print(f"The field fits the training pixels better by more than {BY_HEART} dB: {hint}.")
    _print_files(result.files)


def _fit_mesh(source: Path, output: Path, chosen: dict, settings: dict, run: dict) -> None:
    from .. import mesh as meshes

    with about(source):
        mesh = meshes.load(source)
    ensure(
        find_spec("igl"),
        "distances to meshes need the package libigl; pip install libigl, or coopnet[mesh].",
        ImportError,
    )
    _prepare(output, MESH_PICTURES, run["resume"])
    settings["backend"] = backends.require(settings["backend"])
    kind = "watertight" if mesh.watertight else "not watertight, so that winding numbers say what is inside"
    print(f"{source}: {len(mesh.faces)} triangles, {kind}; {chosen['points']} points, on {settings['backend'].upper()}")
    with learning(source, output, settings | chosen, run["resume"]) as silent:
        result = meshes.fit_mesh(mesh, output, points=chosen["points"], **run, **settings)
        silent.append(result.training.message)
    _ended(result.training, result.files, source, output, settings | chosen)
    print(f"mean error of the distance: {result.error_near:.2e} of the longest side near the surface, ", end="")
    print(f"{result.error_space:.2e} in the cube")
    print(f"correct sign (inside or outside): {100 * result.signs:.2f} % of held-out points")
    _print_files(result.files)


def _ended(training: FitResult, files: Mapping[str, Path], source: Path, output: Path, settings: dict) -> None:
    """Say how the training ended; raises if it did not reach its end."""
    if training.stopped == "diverged":
        message = training.message.split(". ")[0].removeprefix("fit: ")
        hint = f"a smaller --lr than {settings['lr']:g} usually helps"
        raise ValueError(f"{message}; {hint}. Nothing was drawn or written since.")
    if training.stopped == "interrupt":
        written = "no checkpoint was written"
        if training.steps and files["field"].exists():
            written = how_to_resume(source, output, settings)
        print(f"stopped after step {training.steps} of {settings['steps']}; {written}")
        raise Stopped
    print(f"{training.steps} steps in {training.seconds:.1f} s, final loss {training.losses[-1]:.3g}")


@contextmanager
def learning(source: Path, output: Path, settings: dict, resume: bool) -> Iterator[list[str]]:
    """A block that trains, writes a checkpoint, and draws; it gets the warnings that are not to be told.

    Errors name the checkpoint. If the block is interrupted after it has written one, it is said how to go on.
    """
    checkpoint = output / "field.safetensors"
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() and not resume else None
    try:
        with about(checkpoint), telling_warnings() as silent:
            yield silent
    except (KeyboardInterrupt, RuntimeError) as error:
        written = checkpoint.exists() and checkpoint.stat().st_mtime_ns != before
        if not (written and caused_by_interrupt(error)):
            raise
        print(f"stopped before all pictures were drawn; {how_to_resume(source, output, settings)}")
        raise Stopped from None


def how_to_resume(source: Path, output: Path, settings: dict) -> str:
    """Where the checkpoint is, and the command that goes on from it."""
    name = f"./{source}" if str(source).startswith("-") else str(source)  # not an option
    words = ["coopnet", "fit", name, "-o", str(output)]
    words += [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return f"the checkpoint is {output / 'field.safetensors'}\nresume with: {shlex.join([*words, '--resume'])}"


def _print_files(files: Mapping[str, Path]) -> None:
    for path in files.values():
        print(f"wrote {path}")
