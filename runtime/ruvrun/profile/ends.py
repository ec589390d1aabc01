"""Which two nodes a link is measured between: this one, by its bundle, and the one that ``--peer`` names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ruvrun.bundle import find_bundles
from ruvrun.errors import InputError, UsageError, did_you_mean
from ruvrun.manifest import MANIFEST, Manifest, load_manifest
from ruvrun.pipeline.sockets import open_sockets
from ruvrun.placement import Endpoint, Endpoints, endpoints, manifest_path, read_nodes, require_node
from ruvrun.transport import Transport


@dataclass(frozen=True)
class End:
    """One end of a link: the node this machine is, its bundle, and where all nodes are."""

    manifest: Manifest
    node: str
    bundle: Path
    endpoints: Endpoints

    @property
    def transport(self) -> Transport:
        """A new transport with this node's key; nothing is bound."""
        return open_sockets(self.manifest, self.node, self.bundle, self.endpoints)


def end_of(path: Path, node: str | None) -> End:
    """Which end this machine is, by the manifest or bundle directory at ``path``.

    Raises:
        InputError: there is no manifest or no bundle; a probe, say, has no keys.
        UsageError: there are several bundles, and ``node`` does not say which.
    """
    path = manifest_path(path)
    if path.name == MANIFEST and not path.is_file():
        raise InputError(
            "file-missing",
            f"no manifest at {path}: a link is measured between two nodes of a build, with their keys",
            hint="give the manifest or the bundle directory of this node",
        )
    manifest = load_manifest(path)
    found = find_bundles(path, manifest)
    require_node(manifest, node)
    if node is None and len(found) > 1:
        raise UsageError(
            "node-not-said",
            f"{path.parent} holds the bundles of {len(found)} nodes",
            context=[f"they are: {', '.join(sorted(found))}"],
            hint="say which one this is with --node",
        )
    name = node if node is not None else next(iter(found), None)
    if name is None or name not in found:
        raise InputError(
            "bundle-missing",
            f"no bundle {f'of {node} ' if node else ''}beside {path}",
            hint="give the manifest inside a bundle directory, or the one of a whole build",
        )
    return End(manifest, name, found[name], endpoints(manifest, read_nodes(path)))


def peer_of(end: End, named: str) -> tuple[str, Endpoint]:
    """The node that ``--peer`` means, and where it answers: ``NAME``, its ``HOST`` of nodes.toml, either with a port.

    Raises:
        UsageError: no node is called so or is there, or it is this one.
    """
    host, port = _split(named)
    known = end.endpoints.nodes
    names = [name for name in known if name == host] or [
        name for name, at in known.items() if at.host == host and port in (None, at.port) and name != end.node
    ]
    if names == [end.node]:
        raise UsageError("peer-is-self", f"{named} is this node", hint="name another one with --peer")
    if len(names) != 1:
        listed = ", ".join(f"{name} ({at.host}:{at.port})" for name, at in known.items() if name != end.node)
        what = "no node of this manifest is" if not names else "several nodes of this manifest are"
        raise UsageError(
            "peer-unknown",
            f"{what} at {named}",
            context=[f"the others are: {listed or 'none'}"],
            hint=did_you_mean(host, set(known) - {end.node}) if not names else "name one of them, or give its port",
        )
    at = known[names[0]]
    return names[0], Endpoint(at.host, at.port if port is None else port)


def _split(named: str) -> tuple[str, int | None]:
    """``HOST``, ``HOST:PORT``, ``[IPv6]:PORT`` or an IPv6 address alone."""
    host, colon, port = named.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return named.strip("[]"), None
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError("peer-wrong", f"--peer {named}: {port!r} is no port", hint="as in --peer pi-1.local:7070")
    return host.strip("[]"), int(port)
