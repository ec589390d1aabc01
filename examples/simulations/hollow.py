"""A checkpoint that has every tensor's name, type and shape, and no weights: enough for a plan whose costs are known.

    python hollow.py 70b DIRECTORY

``config.json``, the tokenizer and the index are whole; the tensors are holes in sparse files, which read as zeros. So a
model of 141 GB takes 10 MB of disk. What it computes is nothing; what it costs was measured with random numbers of the
same shapes, and is in the cost table beside the fleet.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from checkpoint import SHAPES, config_of, tokenizer

SHARDS = 29


def write_hollow(name: str, directory: Path) -> None:
    """Write the checkpoint of ``SHAPES[name]``; what is there already is written anew."""
    directory.mkdir(parents=True, exist_ok=True)
    shapes = SHAPES[name]
    (directory / "config.json").write_text(json.dumps(config_of(shapes), indent=2))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer()))
    said = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))
    tensors = list(shapes.tensors().items())
    each = math.ceil(len(tensors) / SHARDS)
    index: dict[str, str] = {}
    for number, start in enumerate(range(0, len(tensors), each)):
        shard = f"model-{number:05}.safetensors"
        entries, end = {}, 0
        for tensor, shape in tensors[start : start + each]:
            size = 2 * math.prod(shape)
            entries[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
            end += size
            index[tensor] = shard
        header = json.dumps(entries).encode()
        with (directory / shard).open("wb") as stream:
            stream.write(struct.pack("<Q", len(header)) + header)
            stream.truncate(stream.tell() + end)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    write_hollow(sys.argv[1], Path(sys.argv[2]))
