"""Our side of starting in the benchmark ``openvino-parity``: a process that loads a pipeline and answers once.

    python openvino_first.py MANIFEST CPU

As the peer: one line of JSON with a prompt in, one with its first tokens out. All that serving does before it takes a
request is in it: every byte of the bundle is hashed, and the golden check is repeated.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(manifest: str, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    # After pinning, so that every thread it starts is pinned, too.
    from ruvrun.bench import GREEDY
    from ruvrun.bundle import find_bundles
    from ruvrun.engine import Request
    from ruvrun.manifest import load_manifest
    from ruvrun.pipeline.loading import load_worker
    from ruvrun.pipeline.local import LocalPipeline

    path, asked = Path(manifest), json.loads(sys.stdin.readline())
    loaded = load_manifest(path)
    (directory,) = find_bundles(path, loaded).values()
    context = len(asked["prompt"]) + asked["tokens"]
    worker = load_worker(directory, loaded, 0, context=context, streams=1, threads=1)
    request = Request(0, tuple(asked["prompt"]), asked["tokens"], GREEDY, frozenset())
    found = LocalPipeline([worker], context, 1).generate([request])
    print(json.dumps({"tokens": found[0]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
