"""What several tests of the runtime begin with: a tokenizer, and a head whose driver is a double.

The front is imported when it is asked for; most tests need neither it nor the official client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ruvrun.tokenizer import Tokenizer
from tests.runtime.heads import byte_level, write_head

if TYPE_CHECKING:
    import openai

    from tests.runtime.fronts import ScriptedDriver


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_head(tmp_path_factory.mktemp("head"), byte_level()))


@pytest.fixture(scope="module")
def front(tokenizer: Tokenizer) -> Iterator[tuple[ScriptedDriver, str]]:
    """A served head, and its address."""
    from ruvrun.server import build_app
    from tests.runtime.fronts import CONTEXT, ScriptedDriver, manifest_of, served

    driver = ScriptedDriver()
    with served(build_app(driver, tokenizer, manifest_of(), api_keys={}, context=CONTEXT)) as url:
        yield driver, url


@pytest.fixture
def driver(front: tuple[ScriptedDriver, str]) -> ScriptedDriver:
    """Fresh for each test, behind the same server."""
    front[0].__init__()  # type: ignore[misc]  # the server holds this very object
    return front[0]


@pytest.fixture
def url(front: tuple[ScriptedDriver, str]) -> str:
    return front[1]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    from tests.runtime.fronts import client_of

    with client_of(url) as made:
        yield made
