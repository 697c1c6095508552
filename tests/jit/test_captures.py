"""Arrays that functions refer to; ``training/test_training.py`` has frozen steps that see them."""

from types import SimpleNamespace

import drjit as dr

import coopnet as cn
from coopnet.jit.captures import Captures, _facts, text_key


def test_objects_without_arrays_are_looked_into_once(ns):
    class Plot:
        def __init__(self):
            self.looked, self.part = 0, SimpleNamespace(numbers=[1, [2], {"a": [3]}])

        def __getattribute__(self, name):
            if name == "__dict__":
                object.__setattr__(self, "looked", self.looked + 1)
            return object.__getattribute__(self, name)

    data, plot = SimpleNamespace(table=ns.Float(1)), Plot()
    captures = Captures(lambda key: (data, plot, key), None)
    found, key = captures()
    assert found is data.table and key == "key (1,)" and plot.looked == 1
    data.table = ns.Float([2, 3])  # an array is looked up anew
    found, key = captures()
    assert found is data.table and key == "key (2,)" and plot.looked == 1


def test_new_strings_are_part_of_the_key_of_a_frozen_function(ns, backend):
    """Bools and small numbers are not, if both values occur in an argument before."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1, bias=True)).build(backend, seed=1)

    @dr.freeze
    def scaled(field, x, flag):
        return x * (2 if flag == text_key(True) else 1)

    x = ns.Float(1, 2)
    found = [scaled(field, x, text_key(flag)).numpy().tolist() for flag in (True, False, True)]
    assert found == [[2, 4], [1, 2], [2, 4]]


#: What :class:`Draw` looks up.
TABLES = {}


class Draw:
    def __call__(self, key):
        return TABLES, key


def test_objects_that_are_called_may_look_things_up(ns, monkeypatch):
    monkeypatch.setitem(TABLES, "table", ns.Float(1))
    assert any(value is TABLES["table"] for value in Captures(Draw())())


class Pair:
    DRJIT_STRUCT = {"first": object, "second": object}

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __eq__(self, other):
        raise AssertionError("objects are told apart by identity")


def test_facts_are_numbers_of_entries_numbers_and_strings(ns):
    array, own = ns.Float(1, 2, 3), [4]
    own.append(own)
    facts = _facts([Pair(array, {"a": (True, None, "b")}), Pair(own, own), Pair([4], [4]), SimpleNamespace(a=5)])
    assert sorted(map(str, facts)) == sorted(["3", "True", "None", "b", "4", "4", "4"])
    texts = {text_key(*_facts(v)) for v in ([array, 2], [array, 3], [ns.Float(1), 2], [array, 2.0], [array, "2"])}
    assert len(texts) == 5 and text_key(*_facts([ns.Float(7, 8, 9), 2])) in texts
