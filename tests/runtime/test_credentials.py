"""Secrets that systemd hands out: taken where they are, whatever the modes of their files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ruvrun.bundle import SECRET_KEY
from ruvrun.credentials import LINK_KEY, credential
from ruvrun.errors import InputError, IntegrityError
from ruvrun.manifest import Manifest
from ruvrun.pipeline.sockets import open_sockets
from ruvrun.placement import Endpoint, Endpoints
from ruvrun.transport.keys import make_keypair, write_keys
from tests.runtime.fake_ring import fake_manifest

ELSEWHERE = Endpoints({"a": Endpoint("10.0.0.1", 7070)}, Endpoint("10.0.0.1", 7069))


@pytest.fixture
def handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that systemd makes."""
    folder = tmp_path / "credentials"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    return folder


def manifest_of(public: str) -> Manifest:
    made = fake_manifest(["a"])
    return msgspec.structs.replace(made, node=[msgspec.structs.replace(made.node[0], public_key=public)])


def test_a_link_key_is_taken_from_there(handed: Path, tmp_path: Path) -> None:
    keys = make_keypair()
    write_keys(handed / LINK_KEY, keys)
    (handed / LINK_KEY).chmod(0o440)  # as it looks there with an ACL
    open_sockets(manifest_of(keys.public), "a", tmp_path, ELSEWHERE).close()


def test_elsewhere_others_must_not_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    keys = make_keypair()
    (tmp_path / "node").mkdir()
    write_keys(tmp_path / SECRET_KEY, keys)
    (tmp_path / SECRET_KEY).chmod(0o440)
    with pytest.raises(IntegrityError, match="others can read"):
        open_sockets(manifest_of(keys.public), "a", tmp_path, ELSEWHERE)


def test_the_key_of_another_node_is_refused_from_there_too(handed: Path, tmp_path: Path) -> None:
    write_keys(handed / LINK_KEY, make_keypair())
    with pytest.raises(IntegrityError) as caught:
        open_sockets(manifest_of(make_keypair().public), "a", tmp_path, ELSEWHERE)
    assert str(handed) in caught.value.message


def test_what_was_not_handed_out_is_looked_for_in_the_bundle(handed: Path, tmp_path: Path) -> None:
    (handed / "api-keys").touch()
    assert credential("api-keys") is None, "an empty file is no key"
    assert credential(LINK_KEY) is None
    with pytest.raises(InputError) as caught:
        open_sockets(manifest_of("k" * 40), "a", tmp_path, ELSEWHERE)
    assert caught.value.ref == "key-missing"
