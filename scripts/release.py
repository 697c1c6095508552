"""What a release is checked for: bits that can be repeated, metadata that agree, installations that run.

    python scripts/release.py [--pythons python3.10,python3.13] [--dist dist]

Wheel and sdist are built twice, from two copies of the tracked files that differ in place, time and permissions of
files; both must be the same to the bit. SOURCE_DATE_EPOCH, if not set, is the time of the last commit. The wheel with
its extra ``cli`` is then installed into an empty environment of every interpreter, and ``coopnet info`` and the program
in README.md run there, with warnings as errors where they are ours; so is the sdist, for the first interpreter.
Needs the packages build and hatchling. Exit code 0 if all is well.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What tests and make need beside the package.
IN_SDIST = ("Makefile", "CHANGELOG.md", "pyproject.toml", "benchmarks/results", "docs", "examples", "scripts", "tests")


def run(*command: object, cwd: Path = ROOT, **changed: str | None) -> str:
    """Output of a command; raises ``RuntimeError`` with its errors."""
    variables = {k: v for k, v in (os.environ | changed).items() if v is not None}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def version() -> str:
    """What coopnet/version.py says."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "coopnet" / "version.py").read_text(), re.MULTILINE)
    assert found
    return found[1]


def copy(target: Path, second: bool) -> Path:
    """The tracked files in a place of their own, the second time newer, and with other permissions."""
    for name in run("git", "ls-files", "-z").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            made = target / name
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, made)
            made.chmod(0o600 if second else 0o664)
            os.utime(made, (2e9, 2e9) if second else (1e9, 1e9))
    return target


def build(source: Path, out: Path, epoch: str) -> dict[str, str]:
    """Digests of wheel and sdist by name."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=source, SOURCE_DATE_EPOCH=epoch)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


def check_contents(dist: Path) -> Path:
    """Look into both files; returns the wheel."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(info).decode())
    outside = [n for n in names if not n.startswith(("coopnet/", info.split("/")[0])) or n.endswith(".pyc")]
    assert not outside, f"the wheel holds {outside}"
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert citation
    found = {"wheel": metadata["Version"], "version.py": version(), "CITATION.cff": citation[1]}
    assert len(set(found.values())) == 1, f"versions differ: {found}"
    assert metadata["License-Expression"] == "MIT" and metadata.get_all("License-File") == ["LICENSE"]
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SDIST if not any(h == name or h.startswith(f"{name}/") for h in held)]
    assert not missing, f"the sdist lacks {missing}"
    print(f"version {version()} everywhere, licence {metadata['License-Expression']}; {len(held)} files in the sdist")
    return wheel


def program() -> str:
    """The program in README.md."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if "import coopnet" in block)


def check_installed(python: str, what: str, folder: Path) -> None:
    """Install into an empty environment, and run what a newcomer would."""
    environment, place = folder / "env", folder / "elsewhere"
    place.mkdir(parents=True)
    run(python, "-m", "venv", environment)
    own = environment / "bin" / "python"
    run(own, "-m", "pip", "install", "--quiet", what, cwd=place, PYTHONPATH=None)
    (place / "program.py").write_text(program(), encoding="utf-8")
    clean: dict = {"cwd": place, "PYTHONPATH": None}
    said = run(
        own, "-W", "error", "-c", "import sys, coopnet; print(sys.version.split()[0], coopnet.__version__)", **clean
    )
    info = run(own, "-W", "error", "-m", "coopnet", "info", **clean)
    assert f"coopnet  {version()}" in re.sub(r" {2,}", "  ", info), info
    run(environment / "bin" / "coopnet", "info", "--json", **clean)
    out = run(own, "program.py", **clean)
    print(
        f"Python {said.split()[0]}: {Path(what).name} installed; coopnet info and README's program ran: {out.strip()}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", default=sys.executable, help="interpreters, separated by commas or blanks")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where wheel and sdist go")
    args = parser.parse_args()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory(prefix="coopnet-release-") as name:
        folder, found = Path(name), []
        for second in (False, True):
            source = copy(folder / ("another place" if second else "a"), second)
            found.append(build(source, folder / f"dist{second:d}", epoch))
        assert found[0] == found[1], f"not the same bits: {found}"
        for file, digest in found[0].items():
            print(f"{digest}  {file}, built twice")
        shutil.rmtree(args.dist, ignore_errors=True)
        shutil.copytree(folder / "dist1", args.dist)
        wheel = check_contents(args.dist)
        pythons = [python for python in re.split(r"[,\s]+", args.pythons) if python]
        for i, python in enumerate(pythons):
            check_installed(python, f"{wheel}[cli]", folder / f"wheel{i}")
        (sdist,) = args.dist.glob("*.tar.gz")
        check_installed(pythons[0], f"{sdist}[cli]", folder / "sdist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
