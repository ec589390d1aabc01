# A Python environment with both distributions of this checkout in it, for the scripts that source this file.
# Needs nothing but python3 (3.11 or newer) with venv and pip; any environment that is active is left alone.
# shellcheck shell=bash
set -euo pipefail

# make_environment DIR [REQUIREMENT...]: make or complete the environment in DIR; where everything asked for is
# there already, this takes no time. Sets `python` to its interpreter.
make_environment() {
    local directory=$1 root stamp wanted
    shift
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: python3 is $(python3 -V 2>&1); Python 3.11 or newer is needed" >&2
        exit 7
    }
    python=$directory/bin/python
    stamp=$directory/.complete
    wanted=$(cat "$root/pyproject.toml" "$root/runtime/pyproject.toml"; printf '%s\n' "$root" "$@")
    if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    [ -x "$python" ] || python3 -m venv "$directory"
    echo "installing into $directory" >&2
    "$python" -m pip install --quiet --disable-pip-version-check "$@" >&2
    printf '%s' "$wanted" >"$stamp"
}
