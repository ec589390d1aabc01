"""What the head says of its stages, a line for each change: who is awaited, lost, or refuses."""

from __future__ import annotations

import time
from collections.abc import Callable

from ruvrun.pipeline.driver import Driver
from ruvrun.pipeline.health import NO_ANSWER, whole_of

Say = Callable[[str], None]


def await_ready(driver: Driver, say: Say) -> None:
    """Wait until every stage answers, with lines on those that do not, ever more rarely: a log may see years of it."""
    began, pause, serving, spent, due = time.monotonic(), 5.0, 0, 0.0, 5.0
    while not driver.wait_ready(pause):
        waited = time.monotonic() - began
        nodes = driver.health()["nodes"]
        if serving != (serving := len(whole_of(nodes))):
            say(f"serving: {serving} of {len({node['pipeline'] for node in nodes})} pipelines, without those awaited")
        spent += pause
        told, due = spent >= due, 2 * spent if spent >= due else due
        for node in nodes if told else ():
            if node["state"] in ("waiting", "lost"):
                why = f" ({node['why']})" if node["why"] not in ("", NO_ANSWER) else ""
                say(f"waiting: {node['node']}, no answer for {waited:.0f} s{why}")
        pause = min(pause * 2, 60.0)


def news_of(say: Say) -> Callable[[str, str, str], None]:
    """What a driver's ``on_change`` is: a line for each stage that is lost, or refuses."""

    def tell(name: str, state: str, why: str) -> None:
        if state in ("lost", "refused"):
            say(f"{state}: {name}{f', {why}' if why else ''}")

    return tell
