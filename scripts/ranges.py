"""Are the lowest and the highest versions that pyproject.toml accepts good enough? Needs uv, and Python 3.11 or newer.

    python scripts/ranges.py [--python python3.10] [lowest | highest]...

Makes an environment of the lowest versions of what is required directly, by the package and by the extras cli, train
and mesh, and another of the highest ones; runs the tests of the command line, of files, images and dropout in each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("cli", "train", "mesh")
TESTS = ("tests/test_cli.py", "tests/cli", "tests/io", "tests/image", "tests/random/test_dropout.py")
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")


def requirements() -> list[str]:
    """What the package and its extras need, without the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [*project["dependencies"], *(r for e in EXTRAS for r in project["optional-dependencies"][e])]
    return sorted({r for r in found if not r.startswith("coopnet")})


def check(python: str, which: str) -> int:
    """Exit code of the tests in an environment of its own."""
    place = ROOT / "out" / f"ranges-{which}"
    uv = {**os.environ, "VIRTUAL_ENV": str(place)}
    subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", python, place], check=True)
    resolution = "lowest-direct" if which == "lowest" else "highest"
    install = ["uv", "pip", "install", "--quiet"]
    subprocess.run([*install, "--resolution", resolution, *requirements()], env=uv, check=True)
    subprocess.run([*install, *TOOLS], env=uv, check=True)
    print(
        subprocess.run(["uv", "pip", "freeze"], env=uv, check=True, capture_output=True, text=True).stdout, flush=True
    )
    command = [place / "bin" / "python", "-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-W", "ignore", *TESTS]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3.10", help="the interpreter of the environments")
    parser.add_argument("which", nargs="*", default=["lowest", "highest"], help="lowest, highest or both")
    args = parser.parse_args()
    return max(check(args.python, which) for which in args.which)


if __name__ == "__main__":
    sys.exit(main())
