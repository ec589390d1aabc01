"""The runtime: one machine of a pipeline.

Back ends are told to send nothing home, here, because both commands load this before they load one: ONNX Runtime would
keep a mark of this machine and a record of its sessions for its makers.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
