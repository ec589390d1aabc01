"""No property test depends on how fast or how cold the machine is, and no test on what was done to Ctrl-C before it.

Where tests go in two processes (``run.sh --system``), each folder is one process's: names of network namespaces, ports
and containers are only once on a machine. (Marks of pytest-xdist's groups come to nothing with pytest 9.2.)

A shell lets what it starts in the background ignore Ctrl-C, a command that a test runs in its own process may do the
same, and every process started from there would ignore it too.
"""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

HALF = ("tests/reference/", "tests/runtime/", "tests/system/")
"""Folders whose tests take as long as all others."""

settings.register_profile("ruv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ruv")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Halves(LoadScopeScheduling):
    """Gives all tests of a half to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return "one" if nodeid.startswith(HALF) else "other"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Halves:
    return Halves(config, log)


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
