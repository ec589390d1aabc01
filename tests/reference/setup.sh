#!/usr/bin/env bash
# Makes the models that the tests of this directory compare with, in an environment of its own, and prints where they
# are. Both are kept in .cache/reference under the hash of what they are made from; a second run makes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/reference
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

hash_of() { cat "$@" | sha256sum | cut -c1-16; }
environment=$PWD/.cache/reference/environment-$(hash_of $here/requirements.txt)
models=$PWD/.cache/reference/models-$(hash_of $here/requirements.txt $here/transformers_reference.py)

if [ ! -e "$environment/.complete" ]; then
    echo "installing into $environment" >&2
    python3 -m venv --clear "$environment"
    pip=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${pip[@]}" "$(grep '^torch==' $here/requirements.txt)" >&2
    "${pip[@]}" -r $here/requirements.txt >&2
    touch "$environment/.complete"
fi
if [ ! -d "$models" ]; then
    rm -rf "$models.partial"
    "$environment/bin/python" $here/transformers_reference.py "$models.partial" >&2
    mv "$models.partial" "$models"
fi
echo "$models"
