"""The edge of one node's process: its key, the keys of its peers, and the largest part that may come.

Where every process of a pipeline was started on this machine by one command, links are shared memory (``SameHost``).
Everywhere else they are ZeroMQ's, also to a process that happens to be on the same machine.
"""

from __future__ import annotations

import math
from pathlib import Path

from ruvrun.bundle import SECRET_KEY
from ruvrun.credentials import LINK_KEY, credential
from ruvrun.elements import STRING, carrier
from ruvrun.errors import IntegrityError
from ruvrun.manifest import LOCAL, Manifest, Tensor
from ruvrun.manifest.blocks import sequences_of
from ruvrun.placement import Endpoints
from ruvrun.transport import Transport
from ruvrun.transport.keys import read_keys
from ruvrun.transport.outgoing import QUEUE
from ruvrun.transport.samehost import SameHost
from ruvrun.transport.zeromq import ZeroMq

_LEAST = 1 << 20
_OPEN_SHAPE = 256 << 20  # where the manifest does not say how large a tensor gets


def open_sockets(manifest: Manifest, node: str, bundle: Path, endpoints: Endpoints, *, streams: int = 1) -> Transport:
    """The transport of ``node``, with the secret key in its ``bundle``, or the one that the init system hands out.

    Nothing is bound yet.

    Args:
        manifest: what is served.
        node: which node this is.
        bundle: its own.
        endpoints: where everybody listens.
        streams: sequences at a time, which say how much may be on the way.

    Raises:
        InputError: the key is missing.
        IntegrityError: it is not the key that the manifest has for this node.
    """
    given = credential(LINK_KEY)
    path = given or bundle / SECRET_KEY
    keys = read_keys(path, guarded=given is not None)
    if keys.public != manifest.node_named(node).public_key:
        raise IntegrityError(
            "key-not-the-nodes",
            f"{path} is not the key that the manifest has for {node}",
            hint="copy the bundle and the manifest of one build",
        )
    admitted = {entry.name: entry.public_key for entry in manifest.node}
    largest, queue = largest_part(manifest), most_waiting(manifest, streams)
    if endpoints.head.host == LOCAL:
        return SameHost(node, admitted, largest=largest, queue=queue)
    return ZeroMq(keys, admitted, largest=largest, queue=queue)


def most_waiting(manifest: Manifest, streams: int) -> int:
    """Frames that a link holds while its other end does not read: more than there ever are in a ring
    (``Engine.most_in_ring``), twice, as those of the epoch before may not have left.
    """
    longest = max(len(pipeline.stages) for pipeline in manifest.pipeline)
    return max(QUEUE, 2 * (6 * longest + sequences_of(streams)))


def largest_part(manifest: Manifest) -> int:
    """Bytes of the largest tensor that any link of ``manifest`` carries, and some room.

    It bounds what a peer can make us allocate, so it is as small as the manifest allows.
    """
    tokens = max(manifest.program.context, manifest.space.context if manifest.space else 0, 1)
    travels = [*manifest.program.inputs, *manifest.program.outputs]
    for stage in manifest.stage:
        travels += stage.inputs + stage.outputs
    return max([_LEAST, *(_bytes(tensor, tokens) for tensor in travels)]) + 1024


def _bytes(tensor: Tensor, tokens: int) -> int:
    sizes = [tokens if axis == "tokens" else axis for axis in tensor.shape]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes) or tensor.dtype == STRING or "(" in tensor.dtype:  # texts, sequences, optionals
        return _OPEN_SHAPE
    return math.prod(known) * carrier(tensor.dtype).itemsize
