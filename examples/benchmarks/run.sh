#!/usr/bin/env bash
# Runs one benchmark; without a name, lists them. All that is assumed is python3 with venv and pip; what it makes
# stays in .cache/ of this checkout. The last line of standard output is one JSON object; the exit code is 0 when
# the target is met, 1 when not.
#     ./examples/benchmarks/run.sh [NAME [--pairs N] [--tokens N] [--prompt-tokens N] [--reuse]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

list() {
    cat <<'TEXT'
build           seconds and memory of the first build of a newcomer: at most 45 s and 1.5 GiB
compile-70b     a 70B from a sparse file to int4 in four bundles, on 24 GiB: at most 6 GiB; 50 GiB of disk
compile-8b      an 8B of random weights to int4 in two bundles, on two cores: at most 10 minutes and 3 GiB
dispatch        8 sequences, all of a step but the model, head and stage together: at most 0.5 ms; top_p 1.0 ms more
equality        how far all ways to put two stages on two back ends are from float64: mean KL at most 0.01
large-graphs    a chain of 20,000 nodes and a graph of 50,000 loaded, measured and cut: at most 60 s each
mixed           two nodes of unlike back ends with two streams against the better one with one: at least 1.6
newcomer        a prompt of 256 tokens while 8 decode against an idle server: at most 2.5; their longest gap at most 3
openvino-batch  16 sequences on one OpenVINO stage on one core against one sequence: at least 4.4
openvino-parity one OpenVINO stage against openvino_genai on the same weights: at least 1.0; starts in at most 0.9
parity          one stage, one core, one stream, against onnxruntime-genai on the same weights: at least 1.0
planner         the exact partition of 100,000 downsets: at most 20 s and 1 GiB; decoders and light CNNs: 5 s each
prediction      what plans promise against what their pipelines do: median 5 %, worst 10 %; one node slowed to half
prefix          time to first token of a second prompt that shares 1,024 tokens with a first one: at most 0.15
simulation      simulated against real tokens/s over long lines: at most 10 % off; 1,000 nodes in at most 60 s
two-nodes       two stages on two cores with two streams against one stage with one: at least 1.7
two-nodes-one   the same with one stream: at least 0.85
TEXT
}

name=${1:-}
case $name in
    '' | -h | --help) list; exit 0 ;;
    build | compile-70b | compile-8b | dispatch | equality | large-graphs | mixed | newcomer | openvino-batch | openvino-parity | parity | planner | prediction | prefix | simulation | two-nodes | two-nodes-one) shift ;;
    *)
        { echo "error: no benchmark is called '$name'; there are:"; list; } >&2
        exit 2
        ;;
esac

. examples/environment.sh
# The quickstart's own environment: the same requirements, so that it is made once.
make_environment "$PWD/.cache/quickstart/venv" -e "./runtime[onnxruntime,head]" -e ".[report]"
ours=$python
"$ours" examples/fetch_models.py smollm2 >/dev/null

benchmarks=examples/benchmarks
case $name in
    equality | mixed | openvino-*)
        make_environment "$PWD/.cache/benchmarks/backends" -e "./runtime[onnxruntime,openvino,head]" -e ".[report]"
        both=$python
        ;;
esac
case $name in
    compile-*) exec "$ours" $benchmarks/compile_size.py "$name" "$@" ;;
    build) exec "$ours" $benchmarks/build.py "$@" ;;
    equality | mixed) exec "$both" "$benchmarks/$name.py" "$@" ;;
    dispatch) exec "$ours" $benchmarks/dispatch.py "$@" ;;
    large-graphs) exec "$ours" $benchmarks/large_graphs.py "$@" ;;
    openvino-batch) exec "$both" $benchmarks/openvino_batch.py "$@" ;;
    openvino-parity)
        # The same OpenVINO on both sides: the same kernels.
        same=$("$both" -c 'from importlib.metadata import version; print(version("openvino"))')
        make_environment "$PWD/.cache/benchmarks/openvino-peer" "openvino-genai==$same.*" "openvino==$same"
        exec "$both" $benchmarks/openvino_parity.py "$python" "$@"
        ;;
    parity)
        # The same ONNX Runtime on both sides: the same kernels.
        same=$("$ours" -c 'from importlib.metadata import version; print(version("onnxruntime"))')
        make_environment "$PWD/.cache/benchmarks/peer" onnxruntime-genai==0.18.0 "onnxruntime==$same"
        exec "$ours" $benchmarks/parity.py "$python" "$@"
        ;;
    planner) exec "$ours" $benchmarks/planner.py "$@" ;;
    prediction)
        "$ours" examples/fetch_models.py ppocr-det >/dev/null
        exec "$ours" $benchmarks/prediction.py "$@"
        ;;
    simulation) exec "$ours" $benchmarks/simulation.py "$@" ;;
    newcomer | prefix) exec "$ours" $benchmarks/users.py "$name" "$@" ;;
    two-nodes*) exec "$ours" $benchmarks/two_nodes.py "$name" "$@" ;;
esac
