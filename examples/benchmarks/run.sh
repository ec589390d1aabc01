#!/usr/bin/env bash
# Runs one benchmark; without a name, lists them. All that is assumed is python3 with venv and pip; what it makes
# stays in .cache/ of this checkout. The last line of standard output is one JSON object; the exit code is 0 when
# the target is met, 1 when not.
#     ./examples/benchmarks/run.sh [NAME [--pairs N] [--tokens N] [--prompt-tokens N] [--reuse]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

list() {
    cat <<'TEXT'
bubble          8 streams of random arrivals, a stage that idles though something could go: at most 5 % of the time
build           seconds and memory of the first build of a newcomer: at most 45 s and 1.5 GiB
compile-70b     a 70B from a sparse file to int4 in four bundles, on 24 GiB: at most 6 GiB; 50 GiB of disk
compile-8b      an 8B of random weights to int4 in two bundles, on two cores: at most 10 minutes and 3 GiB
dispatch        8 sequences, all of a step but the model, head and stage together: at most 0.5 ms; top_p 1.0 ms more
equality        how far all ways to put two stages on two back ends are from float64: mean KL at most 0.01
hop             a round trip of 4 and 36 KB against raw TCP's: CURVE at most 2.0 and 3.0 times; on one machine at most 0.9
large-graphs    a chain of 20,000 nodes and a graph of 50,000 loaded, measured and cut: at most 60 s each
memory          what a stage of 300 MB takes at its peak by its weights: at most 1.45; OpenVINO 2.5
mixed           two nodes of unlike back ends with two streams against the better one with one: at least 1.6
newcomer        a prompt of 256 tokens while 8 decode against an idle server: at most 2.5; their longest gap 3
openvino-batch  16 sequences on one OpenVINO stage on one core against one sequence: at least 4.4
openvino-parity one OpenVINO stage against openvino_genai on the same weights: at least 1.0; starts in at most 0.9
parity          one stage, one core, one stream, against onnxruntime-genai on the same weights: at least 1.0
planner         the exact partition of 100,000 downsets: at most 20 s and 1 GiB; decoders and light CNNs: 5 s each
prediction      what plans promise against what their pipelines do: median 5 %, worst 10 %; one node slowed to half
prefill         one prompt of 1,024 tokens on two nodes against one: at least 1.35 times as fast
prefix          time to first token of a second prompt that shares 1,024 tokens with a first one: at most 0.15
scaling         two nodes with 16 streams against one with 8, on each back end: at least 1.8
simulation      simulated against real tokens/s over long lines: at most 10 % off; 1,000 nodes in at most 60 s
two-nodes       two stages on two cores with two streams against one stage with one: at least 1.75
two-nodes-one   the same with one stream: at least 0.87
users16         two nodes with 16 streams against one with one: at least 4.0
users16-ov      the same on OpenVINO: at least 6.8
users32         two nodes with 32 streams against one with one: at least 4.1
users32-ov      the same on OpenVINO: at least 8.0
TEXT
}

name=${1:-}
case $name in
    '' | -h | --help) list; exit 0 ;;
esac
if ! list | cut -d' ' -f1 | grep -xF -- "$name" >/dev/null; then
    { echo "error: no benchmark is called '$name'; there are:"; list; } >&2
    exit 2
fi
shift

. examples/environment.sh
# The quickstart's own environment: the same requirements, so that it is made once.
make_environment "$PWD/.cache/quickstart/venv" -e "./runtime[onnxruntime,head]" -e ".[report]"
ours=$python
"$ours" examples/fetch_models.py smollm2 >/dev/null

benchmarks=examples/benchmarks
case $name in
    equality | memory | mixed | newcomer | openvino-* | scaling | users*-ov)
        make_environment "$PWD/.cache/benchmarks/backends" -e "./runtime[onnxruntime,openvino,head]" -e ".[report]"
        both=$python
        ;;
esac
case $name in
    compile-*) exec "$ours" $benchmarks/compile_size.py "$name" "$@" ;;
    build) exec "$ours" $benchmarks/build.py "$@" ;;
    equality | memory | mixed) exec "$both" "$benchmarks/$name.py" "$@" ;;
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
    bubble | hop | prefill) exec "$ours" "$benchmarks/$name.py" "$@" ;;
    prefix) exec "$ours" $benchmarks/users.py prefix "$@" ;;
    newcomer) exec "$both" $benchmarks/users.py newcomer "$@" ;;
    scaling | users*-ov) exec "$both" $benchmarks/two_nodes.py "$name" "$@" ;;
    two-nodes* | users*) exec "$ours" $benchmarks/two_nodes.py "$name" "$@" ;;
esac
