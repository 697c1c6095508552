"""Names that go: they warn, they say what to use, and they do go."""

from __future__ import annotations

import ast
import inspect
import warnings

import pytest
from support.machines import ROOT

import coopnet as cn
from coopnet import deprecation
from coopnet.deprecation import deprecated, parse, warn_deprecated

HELPERS = ("deprecated", "warn_deprecated")
KNOWN = dict(since="0.3", removed="0.5", instead="coopnet.fit")


def test_a_function_warns_where_it_is_called():
    @deprecated(**KNOWN)
    def train(field, steps=3):
        """Train."""
        return field, steps

    with pytest.warns(DeprecationWarning) as said:
        assert train(1, steps=2) == (1, 2)
    (warning,) = said
    assert warning.filename == __file__
    for word in ("train is deprecated since coopnet 0.3", "removed in 0.5", "use coopnet.fit instead"):
        assert word in str(warning.message)
    assert train.__name__ == "train" and train.__doc__.startswith("Train.") and "Deprecated:" in train.__doc__
    assert list(inspect.signature(train).parameters) == ["field", "steps"]


def test_a_class_and_an_argument_warn():
    class Old:
        @deprecated(**KNOWN)
        def __init__(self, x):
            self.x = x

    def fit(rate=None):
        if rate is not None:
            warn_deprecated("fit: the argument 'rate'", since="0.3", removed="1.0", instead="'lr'")

    with pytest.warns(DeprecationWarning, match=r"Old is deprecated") as said:
        assert Old(3).x == 3
    assert said[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"fit: the argument 'rate' is deprecated") as said:
        fit(rate=1)
    assert said[0].filename == __file__ and said[0].lineno == inspect.currentframe().f_lineno - 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit()


def test_a_class_stays_a_class():
    with pytest.raises(TypeError, match=r"is a class, which would no longer be one; decorate its __init__"):

        @deprecated(**KNOWN)
        class Old: ...


@pytest.mark.parametrize("since, removed", [
    ("0.3", "0.4"), ("0.3", "0.3"), ("0.3", "0.2"), ("1.2", "0.9"), ("0.3", "soon"), ("3", "5"), ("0.3.x", "0.9"),
    ("0.3", None),
])  # fmt: skip
def test_names_stay_for_two_minor_versions(since, removed):
    with pytest.raises(ValueError, match=r"^deprecated: "):
        deprecated(since=since, removed=removed, instead="x")
    with pytest.raises(ValueError, match=r"^deprecated: "):
        warn_deprecated("x", since=since, removed=removed, instead="x")


def test_versions():
    assert parse("0.3") == parse("0.3.7") == parse("0.3.0.dev0") == parse("0.3.0rc1") == (0, 3)
    deprecation.check_versions("0.9", "1.0")
    deprecation.check_versions("0.3", "0.5.1")


def announcements(source):
    """Keyword arguments of all uses of the helpers in ``source``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in HELPERS:
            yield {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}


def overdue(source, version):
    return [found for found in announcements(source) if parse(found["removed"]) <= parse(version)]


def test_what_was_to_go_is_gone():
    """No announcement is older than the version."""
    for path in (ROOT / "coopnet").rglob("*.py"):
        if path.name != "deprecation.py":
            late = overdue(path.read_text(encoding="utf-8"), cn.__version__)
            assert not late, f"{path}: {late}; remove it, and say so in CHANGELOG.md"


@pytest.mark.parametrize("module", ["", "deprecation."])
def test_overdue_ones_are_found(module):
    source = f'@{module}deprecated(since="0.1", removed="0.3", instead="x")\ndef f(): ...'
    assert not overdue(source, "0.2.9") and len(overdue(source, "0.3.0.dev0")) == 1
