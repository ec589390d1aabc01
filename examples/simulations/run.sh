#!/usr/bin/env bash
# Simulates a fleet that nobody has to own: a plan from a kept cost table, and what users of it would meet. All that is
# assumed is python3 with venv and pip; what it makes stays in .cache/ of this checkout.
#     ./examples/simulations/run.sh 70b [options of `ruvcompile plan`, such as --users 2 or --json]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

list() {
    cat <<'TEXT'
70b     a llama of 70B in int4 on four machines of 24 GiB, 16 ms apart
TEXT
}

name=${1:-}
case $name in
    '' | -h | --help) list; exit 0 ;;
    70b) shift ;;
    *)
        { echo "error: no simulation is called '$name'; there are:"; list; } >&2
        exit 2
        ;;
esac

. examples/environment.sh
make_environment "$PWD/.cache/quickstart/venv" -e "./runtime[onnxruntime,head]" -e .
model=$PWD/.cache/simulations/llama-$name
[ -f "$model/model.safetensors.index.json" ] || "$python" examples/simulations/hollow.py "$name" "$model"
here=examples/simulations/$name
exec "$(dirname "$python")/ruvcompile" plan "$model" --fleet "$here/fleet.toml" --costs "$here/costs.toml" \
    --quant int4 --context 2048 --streams 4 --simulate --users 4 "$@"
