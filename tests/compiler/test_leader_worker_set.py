"""The LeaderWorkerSet of a fleet, held against what that kind of object takes and what it gives to its pods.

No package that a registry has carries its schema, so what matters of version 1 of its interface is written down here:
which fields there are and which values they take; which variables and labels a pod gets; and what its pods are called
in the names of the cluster. Of the pods themselves ``kubernetes-validate`` knows all (tests/system).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ruvcompile.render import render_fleet
from tests.nodes import fleet

SET = {"apiVersion", "kind", "metadata", "spec"}
SPEC = {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"}
GROUP = {
    *("leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy", "volumeClaimTemplates"),
    "persistentVolumeClaimRetentionPolicy",
}
STARTUP, RESTART = {"LeaderCreated", "LeaderReady"}, {"None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"}
VARIABLES = {"LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"}
PREFIX = "leaderworkerset.sigs.k8s.io/"
LABELS = {f"{PREFIX}{name}" for name in ("name", "group-index", "worker-index", "group-key")}
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")

FLEETS = [("pi5",), ("pi5", "pi5"), ("intel-gpu",) * 3]


def text(targets: tuple[str, ...], *, image: bool, model: str = "SmolLM2-135M") -> str:
    files = render_fleet(fleet(*targets, model=model), kind="decoder", version="0.1.0", most=4, wheels=False)
    return files[f"k8s/leaderworkerset{'-image' if image else ''}.yaml"].decode()


@pytest.fixture(params=[(targets, image) for targets in FLEETS for image in (False, True)], ids=str)
def documents(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """All that is applied for a fleet."""
    targets, image = request.param
    return list(yaml.safe_load_all(text(targets, image=image)))


def one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in documents if each["kind"] == kind]
    return found


def pods(group: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods that there will be, by name, each from the template that is its own."""
    name, template = group["metadata"]["name"], group["spec"]["leaderWorkerTemplate"]
    for number in range(template["size"]):
        own = template["workerTemplate"] if number else template.get("leaderTemplate", template["workerTemplate"])
        yield f"{name}-0{f'-{number}' if number else ''}", own["spec"]


def test_it_has_the_fields_of_its_kind_and_their_values(documents: list[dict[str, Any]]) -> None:
    group = one(documents, "LeaderWorkerSet")
    spec, template = group["spec"], group["spec"]["leaderWorkerTemplate"]
    assert group["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert set(group) == SET
    assert LABEL.fullmatch(group["metadata"]["name"])
    assert set(spec) <= SPEC
    assert spec["replicas"] == 1, "a second group would be a second fleet with the same keys"
    assert spec["startupPolicy"] in STARTUP
    assert set(template) <= GROUP
    assert "workerTemplate" in template, "it is the one that must be there"
    assert template["size"] >= 1
    assert template["restartPolicy"] in RESTART


def test_stages_start_and_end_each_for_itself(documents: list[dict[str, Any]]) -> None:
    """A head that is ready only once all stages answer may not be waited for; and one that is away is waited for."""
    spec = one(documents, "LeaderWorkerSet")["spec"]
    assert spec["startupPolicy"] == "LeaderCreated"
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "None"


def test_the_nodes_have_the_names_that_their_pods_get(documents: list[dict[str, Any]]) -> None:
    """And each pod takes, by its number, the bundle of the node whose address it has."""
    group = one(documents, "LeaderWorkerSet")
    nodes = tomllib.loads(one(documents, "ConfigMap")["data"]["nodes.toml"])["node"]
    addresses = {node["name"]: node["address"] for node in nodes}
    domain = group["metadata"]["name"]
    assert len(addresses) == len(nodes) == group["spec"]["leaderWorkerTemplate"]["size"]
    for number, (pod, spec) in enumerate(pods(group)):
        for container in (spec["initContainers"][-1], spec["containers"][0]):
            *shell, script, _ = container["command"][:4]
            assert (shell, 'shift "$LWS_WORKER_INDEX"' in script) == (["sh", "-c"], True)
            assert addresses[container["command"][4:][number]] == f"{pod}.{domain}"


def test_the_set_makes_the_service_of_its_own_name(documents: list[dict[str, Any]]) -> None:
    """One of ours would be in its way."""
    name = one(documents, "LeaderWorkerSet")["metadata"]["name"]
    assert name not in {each["metadata"]["name"] for each in documents if each["kind"] == "Service"}


def test_http_goes_to_the_leader(documents: list[dict[str, Any]]) -> None:
    group, service = one(documents, "LeaderWorkerSet"), one(documents, "Service")
    assert service["spec"]["selector"] == {
        f"{PREFIX}name": group["metadata"]["name"], f"{PREFIX}worker-index": "0",
    }  # fmt: skip
    for number, (_, spec) in enumerate(pods(group)):
        ports = {port["name"] for port in spec["containers"][0]["ports"]}
        assert ("http" in ports) is (number == 0)
        asked = spec["containers"][0]["readinessProbe"].get("httpGet", {}).get("path")
        assert asked == (None if number else "/health")


def test_only_the_leader_gets_the_keys_of_clients_and_every_pod_its_own(documents: list[dict[str, Any]]) -> None:
    group = one(documents, "LeaderWorkerSet")
    name = group["metadata"]["name"]
    for number, (_, spec) in enumerate(pods(group)):
        secrets = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
        assert secrets == {f"{name}-keys", *([] if number else [f"{name}-api-keys"])}
        mounted = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        assert "keys" not in mounted, "of all keys the serving container sees its own alone"


@pytest.mark.parametrize("image", [False, True])
def test_no_variable_or_label_is_asked_for_that_nobody_sets(image: bool) -> None:
    found = text(("pi5", "pi5"), image=image)
    assert set(re.findall(r"LWS_\w+", found)) <= VARIABLES
    assert set(re.findall(rf"{re.escape(PREFIX)}[\w-]+", found)) <= LABELS
    assert VARIABLES & set(re.findall(r"LWS_\w+", found)) == {"LWS_WORKER_INDEX"}


def test_a_long_name_leaves_room_for_what_is_added_to_it() -> None:
    """Pods of a group are called NAME-0-NUMBER, and what they are called is a label of a domain."""
    group = one(list(yaml.safe_load_all(text(("pi5", "pi5"), image=False, model="x" * 200))), "LeaderWorkerSet")
    for pod, _ in pods(group):
        assert LABEL.fullmatch(pod)
    assert len(group["metadata"]["name"]) <= 63 - len("-0-9999-0123456789"), "the hash of a revision goes behind it"
