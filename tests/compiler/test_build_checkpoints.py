"""A checkpoint directory goes the whole way: built, verified, run; and the same model in a GGUF is the same build."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ruvcompile import compile as steps
from ruvcompile.progress import Silent
from tests.checkpoints import CONFIGS, random_tensors, write_directory, write_gguf
from tests.compiler.builds import TWO_STAGES, build, check_whole, snapshot

CONFIG = CONFIGS["llama"]


def test_a_directory_and_a_gguf_of_the_same_weights_give_the_same_stages(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    model = write_directory(tmp_path / "tiny modèle", CONFIG, tensors, shards=3)
    other = write_gguf(tmp_path / "tiny.gguf", CONFIG, tensors)
    first = build(model, tmp_path / "one", stages=2)
    costs = (str(tmp_path / "one" / "costs.toml"),)
    build(other, tmp_path / "other", stages=2, costs=costs, name="tiny modèle")
    ours, _ = check_whole(tmp_path / "one")
    theirs, _ = check_whole(tmp_path / "other")
    assert [stage.sha256 for stage in ours.stage] == [stage.sha256 for stage in theirs.stage]
    assert ours.program.quant == theirs.program.quant == "auto"
    for node in ("host-0", "host-1"):
        files, others = (snapshot(tmp_path / made / "bundles" / node) for made in ("one", "other"))
        assert {name for name in files if name.startswith("weights/")}
        for name, data in files.items():
            if not name.startswith(("manifest", "node/")):
                assert others[name] == data, name
    assert first["loss"]["kl"] > 0
    assert steps.verify(tmp_path / "one" / "manifest.toml", None, Silent())["identical"] is True


def test_the_same_directory_gives_the_same_bytes_again(tmp_path: Path) -> None:
    model = write_directory(tmp_path / "tiny", CONFIG, random_tensors(CONFIG), shards=2)
    build(model, tmp_path / "one", stages=2)
    build(model, tmp_path / "again", stages=2, costs=(str(tmp_path / "one" / "costs.toml"),))
    assert check_whole(tmp_path / "one")[0].id == check_whole(tmp_path / "again")[0].id, (
        "the manifest's id is a hash of what is computed"
    )


def test_a_directory_is_built_and_run_from_the_command_line(tmp_path: Path) -> None:
    model = write_directory(tmp_path / "tiny 模型", CONFIGS["gemma3"], random_tensors(CONFIGS["gemma3"]), kind="BF16")
    folder = Path(sys.executable).parent

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(folder / program), *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    built = json.loads(run("ruvcompile", "build", model.name, *TWO_STAGES, "-o", "aus", "--json").stdout)
    assert len(built["stages"]) == 2
    told = run("ruvrun", "run", "aus/manifest.toml", "--prompt", "the cat", "--max-tokens", "12", "--json").stdout
    assert len(json.loads(told)["tokens"]) == 12
