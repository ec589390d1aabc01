"""No property test depends on how fast or how cold the machine is, and no test on whether a shell waits for it.

A shell lets what it starts in the background ignore Ctrl-C, and so does whatever is started there.
"""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("ruv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ruv")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
