"""Plugin of pytest: a worker that dies ends the run at once, where pytest-xdist would let the others go on."""

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem):
    pytest.exit(f"a worker died while running {crashitem}", returncode=3)
