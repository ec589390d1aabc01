"""What the front counts."""

from __future__ import annotations

from ruvrun.metrics import Counter, Gauge, render
from ruvrun.pipeline.health import READY
from ruvrun.server.driver import Driver


class Meters:
    """What the front counts."""

    def __init__(self) -> None:
        self.requests = Counter(
            "ruvrun_requests_total", "Requests for text or tensors, by path and HTTP status.", ("path", "status")
        )
        self.prompt_tokens = Counter("ruvrun_prompt_tokens_total", "Tokens of prompts that were taken in.")
        self.completion_tokens = Counter("ruvrun_completion_tokens_total", "Tokens that were generated for clients.")
        self.first = Counter("ruvrun_first_token_total", "Requests that got their first token.")
        self.first_seconds = Counter("ruvrun_first_token_seconds_total", "Time until the first token, summed.")
        self.lost = Counter("ruvrun_lost_total", "Requests that ended because a stage was lost.")
        self.put_backs = Counter(
            "ruvrun_put_backs_total", "Sequences that were put back as space ran out, to be computed again later."
        )
        self.running = Gauge("ruvrun_requests_running", "Sequences or calls in the pipeline.")
        self.waiting = Gauge("ruvrun_requests_waiting", "Sequences or calls that wait for space.")
        self.ready = Gauge("ruvrun_node_ready", "1 where the node's stage answers.", ("node", "stage"))

    def render(self, driver: Driver) -> str:
        """The text for Prometheus, with the driver's state of this moment."""
        running, waiting = driver.load()
        self.running.set(running)
        self.waiting.set(waiting)
        self.put_backs.set(driver.put_backs())
        for node in driver.health()["nodes"]:
            self.ready.set(node["state"] == READY, node["node"], str(node["stage"]))
        return render(vars(self).values())
