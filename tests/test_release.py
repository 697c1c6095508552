"""The release: one version, metadata that are true, files that say what they should."""

from __future__ import annotations

import datetime
import importlib.util
import re

import pytest
from support.machines import ROOT, python

import coopnet as cn

tomllib = pytest.importorskip("tomllib")  # Python 3.11
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_version():
    """Of the code, the citation, the changelog; wheels take it from the code."""
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert citation[1] == cn.__version__
    changes = re.findall(r"^## \[?(?:Unreleased\]: )?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changes[0] == re.sub(r"\.dev\d+$", "", cn.__version__)
    assert changes == sorted(changes, key=lambda v: [int(n) for n in v.split(".")], reverse=True)


def test_a_release_and_the_development_after_it():
    """What ``make release VERSION=`` writes."""
    spec = importlib.util.spec_from_file_location("release_version", ROOT / "scripts" / "version.py")
    version = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(version)
    names = ("coopnet/version.py", "CITATION.cff", "CHANGELOG.md", "docs/installation.md")
    before = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    day = datetime.date(2030, 1, 2)
    before = version.changed(before, "9.0.0.dev0", day)  # while a release is being made, nothing is unreleased
    released = version.changed(before, "9.0.0", day)
    assert '__version__ = "9.0.0"\n' in released["coopnet/version.py"]
    assert "\nversion: 9.0.0\n" in released["CITATION.cff"]
    assert "\n## 9.0.0 (2030-01-02)\n" in released["CHANGELOG.md"] and "Unreleased" not in released["CHANGELOG.md"]
    assert '\n```sh\npip install "coopnet[cli]"\n' in released["docs/installation.md"]
    assert "no release" not in released["docs/installation.md"]
    after = version.changed(released, "9.1.0.dev0", day)
    assert "\n## [Unreleased]: 9.1.0\n\n## 9.0.0 (2030-01-02)\n" in after["CHANGELOG.md"]
    assert after["docs/installation.md"] == released["docs/installation.md"]
    assert version.changed(after, "9.1.0", day)["CHANGELOG.md"].count("(2030-01-02)") == 2
    with pytest.raises(ValueError, match="no version"):
        version.changed(before, "next", day)
    with pytest.raises(ValueError, match="nothing matches"):
        version.changed(released, "9.0.1", day)  # nothing is unreleased


def test_licence():
    assert PROJECT["license"] == "MIT" and PROJECT["license-files"] == ["LICENSE"]
    assert not any(line.startswith("License ::") for line in PROJECT["classifiers"])  # PEP 639 has them no more
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_every_extra_is_installed_by_name():
    """Ranges have an end below, extras name no unknown ones."""
    extras = PROJECT["optional-dependencies"]
    for name in ("cli", "train", "mesh"):
        for requirement in [*PROJECT["dependencies"], *extras[name]]:
            assert ">=" in requirement or requirement.startswith("coopnet["), requirement
    for requirements in extras.values():
        for requirement in requirements:
            if named := re.match(r"coopnet\[(.+)\]", requirement):
                assert set(named[1].split(",")) <= set(extras)


def test_the_interpreters_that_are_named():
    versions = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert versions[0] == PROJECT["requires-python"].removeprefix(">=")
    assert [int(v.split(".")[1]) for v in versions] == list(range(10, 10 + len(versions)))


@pytest.mark.slow
def test_builds_repeat_to_the_bit(tmp_path):
    """Wheel and sdist of two copies that differ in place, time and permissions."""
    if not (ROOT / ".git").exists() or not all(map(importlib.util.find_spec, ("build", "hatchling"))):
        pytest.skip("needs the packages build and hatchling, and the repository")
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import release; from pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "copies = {n: release.copy(folder / n, n == 'b') for n in 'ab'}\n"
        "found = [release.build(copy, folder / f'dist-{n}', '1700000000') for n, copy in copies.items()]\n"
        "assert len(found[0]) == 2 and found[0] == found[1], found\n"
        "release.check_contents(folder / 'dist-a')\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_collection_is_clean():
    """Every test is found with warnings as errors."""
    done = python(
        "-W", "error", "-m", "pytest", "--collect-only", "-q", "-W", "error", "-p", "no:cacheprovider",
        "-p", "no:benchmark", "tests",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_hooks_run_what_is_installed():
    """No hook brings a version of its own."""
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    languages = re.findall(r"language: (\w+)", text)
    assert len(languages) == text.count("- id: ") and set(languages) == {"system"}
    assert {"ruff", "ruff-format", "mypy"} <= set(re.findall(r"- id: ([\w-]+)", text))
