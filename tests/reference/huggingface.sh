#!/usr/bin/env bash
# Makes an environment with the extra `huggingface`, and the tiny models that it is tried with, and prints where it is.
# torch and transformers are those of the environment that setup.sh made; pip finds them there, and nothing is twice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/reference
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

hash_of() { cat "$@" | sha256sum | cut -c1-16; }
made_from=("$here/requirements.txt" "$here/huggingface_reference.py" pyproject.toml runtime/pyproject.toml)
base=$PWD/.cache/reference/environment-$(hash_of $here/requirements.txt)
environment=$PWD/.cache/reference/huggingface-$(hash_of "${made_from[@]}")

if [ ! -e "$environment/.complete" ]; then
    echo "installing into $environment" >&2
    python3 -m venv --clear "$environment"
    packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
    packages "$base" >"$(packages "$environment")/base.pth"
    pip=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${pip[@]}" -e "./runtime[onnxruntime,head]" -e ".[huggingface]" >&2
    rm -rf "$environment/models"
    "$environment/bin/python" $here/huggingface_reference.py "$environment/models" >&2
    touch "$environment/.complete"
    for other in .cache/reference/huggingface-*; do
        [ "$PWD/$other" = "$environment" ] || rm -rf "$other"
    done
fi
echo "$environment"
