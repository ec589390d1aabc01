"""A full queue and a time that is up, over a real socket; only the driver is a double."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator

import openai
import pytest

from ruvrun.engine import Request, Token
from ruvrun.openai import ApiError
from ruvrun.server import Limits, build_app
from ruvrun.server.limits import Queue
from ruvrun.server.room import BusyError
from ruvrun.tokenizer import Tokenizer
from tests.runtime.fronts import CONTEXT, HELLO, SAFETY, ScriptedDriver, call, client_of, manifest_of, says, served

BODY = b'{"prompt": "x"}'


class CrowdedDriver(ScriptedDriver):
    """Says that so many wait."""

    waiting = 0

    def load(self) -> tuple[int, int]:
        return 4, self.waiting


@pytest.fixture
def driver() -> CrowdedDriver:
    return CrowdedDriver()


@pytest.fixture
def url(driver: CrowdedDriver, tokenizer: Tokenizer) -> Iterator[str]:
    limits = Limits(queue=3, seconds=2 * SAFETY)
    with served(build_app(driver, tokenizer, manifest_of(), api_keys={}, context=CONTEXT, limits=limits)) as where:
        yield where


@pytest.mark.parametrize(
    ("waiting", "prompts", "status"), [(0, 128, 200), (2, 1, 200), (3, 1, 429), (1, 2, 200), (1, 3, 429)]
)
def test_a_full_queue_refuses_and_says_when_to_come_again(
    driver: CrowdedDriver, url: str, tokenizer: Tokenizer, waiting: int, prompts: int, status: int
) -> None:
    driver.script = says(tokenizer, "a")
    driver.waiting = waiting
    found, headers, body = call(url, "POST", "/v1/completions", json.dumps({"prompt": ["x"] * prompts}).encode())
    assert found == status
    assert len(driver.submitted) == (prompts if status == 200 else 0)
    if status == 429:
        assert int({name.lower(): value for name, value in headers.items()}["retry-after"]) >= 1
        assert json.loads(body)["error"]["code"] == "busy"


def test_a_client_knows_a_full_queue(driver: CrowdedDriver, url: str) -> None:
    driver.waiting = 3
    with client_of(url) as client, pytest.raises(openai.RateLimitError, match="at most 3"):
        client.chat.completions.create(model="tiny", messages=HELLO)


def test_when_to_come_again_is_when_a_place_is_free() -> None:
    queue = Queue(5)
    for _ in range(50):
        queue.took(40.0)
    for running, expected in ((1, 40), (8, 5), (100, 1), (0, 40)):
        with pytest.raises(BusyError) as busy:
            queue.check((running, 5), 1)
        assert busy.value.retry_after == expected
    Queue(None).check((8, 10**6), 128)


@pytest.mark.parametrize("stream", [False, True])
def test_a_time_that_is_up_ends_a_request_wherever_it_stands(driver: CrowdedDriver, url: str, stream: bool) -> None:
    hold = threading.Event()

    def script(request: Request) -> Iterable[Token]:
        if stream:
            yield Token(request.id, 70, None)
        hold.wait(SAFETY)

    driver.script = script
    body = json.dumps({"prompt": ["x", "y"], "stream": stream}).encode()
    status, headers, said = call(url, "POST", "/v1/completions", body, {"X-Request-Timeout": "0.2"})
    assert {driver.cancelled.get(timeout=SAFETY) for _ in range(2)} == {request.id for request in driver.submitted}
    hold.set()
    last = said.decode().strip().split("\n\n")[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == "deadline_exceeded"
    if stream:
        assert status == 200, "it had begun"
        assert b"[DONE]" not in said
    else:
        assert (status, headers["x-should-retry"]) == (504, "false")


def test_deadlines() -> None:
    assert Limits().deadline(None) is None
    assert Limits().deadline("7.5") == 7.5
    assert Limits(seconds=5.0).deadline("7.5") == 5.0
    assert Limits(seconds=5.0).deadline(None) == 5.0
    for wrong in ("soon", "0", "-1", "nan", "inf", ""):
        with pytest.raises(ApiError) as refused:
            Limits().deadline(wrong)
        assert refused.value.status == 400
