"""tiny-cuda-nn as a peer: its sample that learns an image, and its inference, built from a source tree of the user's.

    python benchmarks/whole_jobs.py --backend cuda --jobs config_hash --image albert.jpg --tcnn tiny-cuda-nn
    python benchmarks/export.py --backend cuda --tcnn tiny-cuda-nn

The tree is a clone with its submodules. Building takes CMake, a C++ compiler and NVIDIA's nvcc, and some minutes; what
was built is kept beside the results of the build. Where something is missing, the peer is left out and the reason said.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

#: Samples of a step, a constant of the sample.
SAMPLES = 1 << 18
SAMPLE = "mlp_learning_an_image"
#: The project that builds what is measured.
PROJECT = Path(__file__).with_name("tcnn_programs")
_LINE = re.compile(r"Step#(\d+): loss=(\S+) time=(\d+)\[")


def missing(source: Path) -> str:
    """Why it cannot be built from ``source``, if that is so."""
    if not (source / "samples" / f"{SAMPLE}.cu").is_file():
        return f"{source} is no source tree of tiny-cuda-nn"
    if not (source / "dependencies" / "cutlass" / "include").is_dir():
        return f"{source} lacks its submodules: git submodule update --init --recursive"
    for program in ("cmake", "nvcc"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return ""


def build(source: Path, target: str = SAMPLE) -> Path:
    """The executable ``target`` for the GPU of this machine, built if it is not there."""
    architecture = dr.detail.cuda_compute_capability()
    folder = source / f"build-{architecture}"
    program = folder / target
    if not program.is_file():
        options = [f"-DTCNN_SOURCE={source.resolve()}", f"-DTCNN_CUDA_ARCHITECTURES={architecture}"]
        options += ["-DCMAKE_BUILD_TYPE=Release"]
        subprocess.run(["cmake", "-S", PROJECT, "-B", folder, *options], check=True)
        subprocess.run(["cmake", "--build", folder, "--parallel", "--target", target], check=True)
    return program


def inference(source: Path, config: dict[str, Any], inputs: int, outputs: int, samples: int) -> dict[str, float]:
    """Nanoseconds of an evaluation, by precompiled kernels and by those that are compiled at run time."""
    if why := missing(source):
        raise RuntimeError(why)
    program = build(source, "inference")
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder, "config.json")
        described.write_text(json.dumps(config))
        command = [program.resolve(), described, str(inputs), str(outputs), str(samples)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    times = {name: float(ns) for name, ns in re.findall(r"^(precompiled|jit) (\S+)$", done.stdout, re.M)}
    return {f"tiny-cuda-nn, {name}": ns for name, ns in times.items() if not math.isnan(ns)}


def measure(program: Path, config: dict[str, Any], image: Path, steps: int) -> dict[str, Any]:
    """Train ``steps`` steps: wall time of one, and the quality of the picture that came out."""
    with tempfile.TemporaryDirectory() as folder:
        described, out = Path(folder, "config.json"), Path(folder, "out.jpg")
        described.write_text(json.dumps(config))
        command = [program.resolve(), image.resolve(), described, str(steps), out]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        row = {"peer": "tiny-cuda-nn", "samples": SAMPLES, "steps": steps, "wall_ms": wall(done.stdout)}
        return row | ({"psnr_db": quality(_pixels(out), _pixels(image))} if out.is_file() else {})


def wall(printed: str) -> float:
    """Milliseconds of a step: the median of what the sample prints of the steps since it printed last."""
    lines = [(int(step), float(us)) for step, _, us in _LINE.findall(printed)]
    times = [us / (step - before) / 1e3 for (before, _), (step, us) in itertools.pairwise(lines)]
    if not times:
        raise RuntimeError(f"The sample of tiny-cuda-nn printed no times: {printed[-300:]}")
    return statistics.median(times[len(times) // 2 :])  # the first ones are short and warm up


def _pixels(path: Path) -> np.ndarray:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    return np.asarray(Image.open(path).convert("RGB"), np.float64)


def quality(seen: np.ndarray, truth: np.ndarray) -> float:
    """PSNR in dB of 8-bit pixels."""
    return float(-10 * np.log10(np.mean((seen - truth) ** 2) / 255**2))
