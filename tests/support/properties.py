"""hypothesis, which a GPU machine's own Python may lack: there the tests of properties are skipped, and no others."""

import pytest

try:
    import hypothesis.extra.numpy as hnp
    import hypothesis.strategies as st
    from hypothesis import example, given, settings
except ImportError:

    class Strategy:
        """Any strategy, and what is made of it: nobody draws from it."""

        def __getattr__(self, name):
            return self

        def __call__(self, *arguments, **options):
            return self

        def __or__(self, other):
            return self

    def given(*strategies, **named):
        return pytest.mark.skip(reason="could not import 'hypothesis'")

    def settings(*arguments, **options):
        return lambda test: test

    example, hnp, st = settings, Strategy(), Strategy()

__all__ = ["example", "given", "hnp", "settings", "st"]
