"""No property test depends on how fast or how cold the machine is, and no test on what was done to Ctrl-C before it.

A shell lets what it starts in the background ignore Ctrl-C, a command that a test runs in its own process may do the
same, and every process started from there would ignore it too.
"""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ruv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ruv")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
