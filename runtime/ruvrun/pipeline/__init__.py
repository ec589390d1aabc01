"""Drive a pipeline: one stage without its links (``worker``), all stages in one process (``local``), the links of
the head (``ring``) and the thread that owns engine and ring (``driver``).

The compiler uses what is named here, to compare and to check with the code that will run.
"""

from ruvrun.engine import Request
from ruvrun.frames import Sampling
from ruvrun.pipeline.local import LocalPipeline, join_local, open_local
from ruvrun.pipeline.worker import Worker

__all__ = ["LocalPipeline", "Request", "Sampling", "Worker", "open_local"]
