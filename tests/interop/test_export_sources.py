"""Exported sources, every line, beside recorded ones: most of the languages run only under ``make test-export``.

Where sources change on purpose, run those tests, and then ``python tests/interop/test_export_sources.py`` records anew.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
import pytest

import coopnet as cn
from coopnet.interop.export.targets import TARGETS

RECORDED = Path(__file__).with_name("sources")


def masked() -> cn.NeuralField:
    """Levels of which one is hashed, another encoding beside them, and layers that overwrite their input."""
    grid = cn.Grid(2, n_levels=2, base_resolution=3, hashmap_size=16)
    layers = [cn.Linear(-1, 4), cn.ReLU(), cn.Dropout(0.5), cn.Linear(-1, 2, bias=False), cn.LeakyReLU()]
    encoding = cn.Composite([grid, cn.Frequency(1)], [2, 1])
    return cn.NeuralField(encoding, cn.Sequential(*layers), bounds=([-1, 0, 0], [1, 2, 4])).build("llvm", "half")


def slope() -> cn.NeuralField:
    """More constants than a line holds."""
    return cn.NeuralField(cn.Sinusoidal(9, 0.1, in_features=1), cn.Linear(-1, 2)).build("llvm")


#: Fields by the name of their function, and how they are exported.
FIELDS = {
    "masked": (masked, {"dropout": True, "grids": "uint8", "inline": False}),
    "slope": (slope, {"derivatives": True}),
}


def source(name: str, target: str, folder: Path) -> str:
    make, options = FIELDS[name]
    field = make()
    for p in cn.nn.parameters.parameters(field):  # the same numbers wherever it was built
        field.set_matrix(p.name, np.linspace(-1, 1, int(np.prod(p.shape))).reshape(p.shape))
    text = cn.export(field, target, folder / "source", name=name, **options).source.read_text()
    return text.replace(cn.__version__, "VERSION")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FIELDS)
def test_sources_are_those_that_ran(name, target, tmp_path):
    recorded = (RECORDED / f"{name}.{target}.txt").read_text()
    pair = recorded.splitlines(), source(name, target, tmp_path).splitlines()
    assert not list(difflib.unified_diff(*pair, lineterm=""))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        for name in FIELDS:
            for target in TARGETS:
                (RECORDED / f"{name}.{target}.txt").write_text(source(name, target, Path(scratch)))
