"""Start ``ruvrun serve``, wait until it is ready, ask one question over HTTP, print the answer, stop it.

Any client of the OpenAI API would do; this one is the standard library, so that nothing is hidden.

    python ask.py RUVRUN MANIFEST QUESTION
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from typing import IO

PATIENCE_S = 60


def ready_url(output: IO[str]) -> str:
    """The address of the head, once ``ready: URL`` is printed; all lines are passed on."""
    for line in output:
        print(line, end="", flush=True)
        if line.startswith("ready: "):
            return line.split()[1]
    raise SystemExit("error: ruvrun ended before it was ready")


def ask(url: str, question: str) -> str:
    """The answer of the one model that is served there."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=PATIENCE_S) as reply:
        model = json.load(reply)["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def main(ruvrun: str, manifest: str, question: str) -> int:
    """Serve, ask, stop; the exit code of the server if it failed."""
    command = [ruvrun, "serve", manifest, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            answer = ask(ready_url(server.stdout), question)
            print(f"\n{question}\n  {answer}\n", flush=True)
        finally:
            server.send_signal(signal.SIGINT)
            for line in server.stdout:
                print(line, end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
