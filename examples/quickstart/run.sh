#!/usr/bin/env bash
# The whole journey on this machine: a real 135M chat model is built into two stages, served, asked, stopped.
#     ./examples/quickstart/run.sh ["a question"]
# All that is assumed is python3 with venv and pip. What it makes stays in .cache/ of this checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case ${1:-} in -h | --help) sed -n '2,4s/^# *//p' "examples/quickstart/run.sh" && exit 0 ;; esac
question=${1:-What is the capital of France?}

. examples/environment.sh
make_environment "$PWD/.cache/quickstart/venv" -e "./runtime[onnxruntime,head]" -e ".[report]"
model=$("$python" examples/fetch_models.py smollm2)
dist=$PWD/.cache/quickstart/dist
bin=$PWD/.cache/quickstart/venv/bin

echo "== ruvcompile build $(basename "$model") --target host --nodes 2 --stages 2"
"$bin/ruvcompile" build "$model" --target host --nodes 2 --stages 2 --output "$dist"

echo "== ruvrun serve $dist/manifest.toml"
exec "$python" examples/quickstart/ask.py "$bin/ruvrun" "$dist/manifest.toml" "$question"
