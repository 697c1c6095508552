"""A warning, once, where ``fit`` sees coordinates that an encoding cannot tell apart."""

from __future__ import annotations

import re
import warnings

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest

import coopnet as cn
from coopnet.nn.encoding import in_unit

GRID = dict(n_levels=2, hashmap_size=2**6, base_resolution=4)
WORDS = r"^fit: (\d+) % of the first batch lies outside \[0, 1\].*bounds=\(low, high\)"


def field(encoding, backend, network=None, **options):
    return cn.NeuralField(encoding, network or cn.MLP(-1, 1, 8, 1), in_features=2, **options).build(backend)


def said(f, batch, **options):
    """Warnings of a run of two steps."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        cn.fit(f, batch, 2, progress=False, **options)
    return [text for w in found if "overflowed" not in (text := str(w.message))]  # a scaler's first steps


def draws(ns, low, high, third=()):
    def batch(key):
        u = cn.uniform(2, key, ns.Float, 256)
        p = [low + (high - low) * v for v in u]
        return p, [p[0] * p[1]], *third

    return batch


UNIT = {
    "Grid": lambda: cn.Grid(2, **GRID),
    "HashGrid": lambda: cn.HashGrid(2, **GRID),
    "Permutohedral": lambda: cn.Permutohedral(2, **GRID),
    "OneBlob": lambda: cn.OneBlob(4),
}


@pytest.mark.parametrize("name", UNIT)
def test_encodings_of_the_unit_cube(ns, backend, name):
    (text,) = said(field(UNIT[name](), backend), draws(ns, -1, 1))
    assert "coordinates from -" in text and f"{name} expects coordinates in" in text
    assert said(field(UNIT[name](), backend), draws(ns, 0, 1)) == []
    assert said(field(UNIT[name](), backend, bounds=(-1, 1)), draws(ns, -1, 1)) == []


def test_directions(ns, backend):
    """Spherical harmonics take coordinates of the unit cube, too."""

    def batch(key):
        p, d = [v * 0.5 + 0.25 for v in cn.uniform(2, key, ns.Float, 256)], [ns.Float(0), ns.Float(-0.6), ns.Float(0.8)]
        return [*p, *d], [p[0] * p[1]]

    def make(**options):
        encoding = cn.Composite([cn.HashGrid(2, **GRID), cn.SphericalHarmonics(2)], [2, 3])
        return cn.NeuralField(encoding, cn.MLP(-1, 1, 8, 1), **options).build(backend)

    (text,) = said(make(), batch)
    assert "HashGrid and SphericalHarmonics expect coordinates in" in text
    assert said(make(bounds=((0, 0, -1, -1, -1), (1, 1, 1, 1, 1))), batch) == []


def test_the_share_and_the_place(ns, backend):
    """Of the samples, not of the coordinates; the warning is of the line that calls."""
    f = field(UNIT["Grid"](), backend)
    with pytest.warns(RuntimeWarning, match=WORDS) as found:
        cn.fit(f, draws(ns, 0, 2), 1, progress=False)
    assert len(found) == 1 and found[0].filename == __file__
    assert 65 < int(re.match(WORDS, str(found[0].message))[1]) < 85
    (text,) = said(field(UNIT["Grid"](), backend, bounds=(0, 1.25)), draws(ns, 0, 2))
    assert "outside the field's bounds" in text
    assert said(f, draws(ns, -0.01, 1.01)) == []  # a few


def test_others_say_nothing(ns, backend):
    for encoding in (cn.Sinusoidal(2), cn.Fourier(4), cn.Identity(), None):
        network = cn.MLP(2, 1, 8, 1) if encoding is None or isinstance(encoding, cn.Identity) else None
        assert said(field(encoding, backend, network), draws(ns, -3, 3)) == []


def test_only_the_coordinates_that_it_is_about(ns, backend):
    def batch(key):
        u, v = cn.uniform(2, key, ns.Float, 256)
        return [10 * u, v], [u]

    def composite(first, second):
        return cn.nn.Pad(cn.Composite([first, second], [1, 1]), after=2)

    assert said(field(composite(cn.Identity(), cn.OneBlob(4)), backend), batch) == []
    (text,) = said(field(composite(cn.OneBlob(4), cn.Identity()), backend), batch)
    assert "OneBlob expects coordinates in" in text


def test_an_encoding_inside_the_network(ns, backend):
    network = cn.Sequential(cn.OneBlob(4), cn.Linear(-1, 1))
    assert len(said(field(None, backend, network), draws(ns, -1, 1))) == 1
    theirs = drnn.HashEncodingLayer(drnn.HashGridEncoding(ns.Float, 2, n_levels=2))
    assert in_unit(theirs, 2) == [0, 1] and in_unit(cn.Sequential(), 2) == in_unit(drnn.ReLU(), 2) == []


def test_objectives_and_masks(ns, backend):
    """Whatever the objective evaluates the field at counts, but for inactive lanes, and for other fields."""
    f, teacher = (field(UNIT["Grid"](), backend, bounds=b) for b in ((5, 6), None))

    def drawn(key):
        return [5 + v for v in cn.uniform(2, key, ns.Float, 256)]

    def objective(f, p, key):
        y, g = f.value_and_grad(p, active=p[0] < 5.5)  # inactive lanes are evaluated at zero
        return dr.square(y[0] - teacher(p)[0]) + dr.square(g[0])

    assert said(f, drawn, objective=objective) == []
    (text,) = said(teacher, drawn, objective=lambda f, p, key: dr.square(f.value_and_grad(p)[1][0]))
    assert text.startswith("fit: 100 %") and "from 5" in text

    def loop(f, p, key):
        def body(i, total):
            return i + 1, total + f(p)[0]

        start = ns.UInt32(0), dr.zeros(ns.Float, 256)
        return dr.while_loop(start, lambda i, total: i < 2, body, max_iterations=2)[1]

    assert said(teacher, drawn, objective=loop) == []  # nothing can be looked at in there


def test_many_fields(ns, backend):
    fields = [field(UNIT["Grid"](), backend) for _ in range(2)]

    def batch(key, job):
        return draws(ns, -1, 1)(key)

    with pytest.warns(RuntimeWarning, match="^job 0: fit: .*bounds=") as found:
        cn.fit_many(fields, batch, 2, progress=False, together=1)
    assert len(found) == 1


def test_one_sample(ns, backend):
    f = field(UNIT["Grid"](), backend)
    point = ns.Float(np.float32([2.5]))
    (text,) = said(f, lambda key: ([point, point], [point]))
    assert text.startswith("fit: 100 %") and "from 2.5 to 2.5" in text
