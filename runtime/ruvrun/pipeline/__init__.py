"""Drive a pipeline: one stage without its links (``worker``), all stages in one process (``local``), the links of
the head (``ring``) and the thread that owns engine and ring (``driver``).

The compiler uses what is named here, to compare and to check with the code that will run, and to write link keys as
they will be read.
"""

from ruvrun.engine import Request
from ruvrun.frames import Sampling
from ruvrun.pipeline.local import LocalPipeline, join_local, open_local
from ruvrun.pipeline.worker import Worker
from ruvrun.transport.keys import KeyPair, make_keypair, read_keys, write_keys

__all__ = [
    "KeyPair",
    "LocalPipeline",
    "Request",
    "Sampling",
    "Worker",
    "join_local",
    "make_keypair",
    "open_local",
    "read_keys",
    "write_keys",
]
