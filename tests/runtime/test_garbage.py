"""What a process has loaded is not looked through for garbage; what comes later is."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import gc, weakref
import ruvrun.stage
from ruvrun.garbage import leave_be

class Ring: ...

def ring():
    one = Ring()
    one.self = one
    return weakref.ref(one)

before, many = ring(), len(gc.get_objects())
leave_be()
after = ring()
print(before() is None, many > 10_000, len(gc.get_objects()) < many / 20)
gc.collect()
print(after() is None)
"""


def test_only_what_comes_later_is_looked_through() -> None:
    """In a process of its own: this one's tests would be left be, too."""
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True"] * 4, done.stderr
