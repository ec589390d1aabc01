"""No property test depends on how fast or how cold the machine is, and no test on what was done to Ctrl-C before it.

Where tests go in two processes (``run.sh --system``), each folder is one process's: names of network namespaces, ports
and containers are only once on a machine.

A shell lets what it starts in the background ignore Ctrl-C, a command that a test runs in its own process may do the
same, and every process started from there would ignore it too.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
OF_MACHINES = (HERE / "system", HERE / "runtime")
"""Folders whose tests take as long as all others."""

settings.register_profile("ruv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ruv")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which writes the groups into the names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = "machines" if any(map(item.path.is_relative_to, OF_MACHINES)) else "models"
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
