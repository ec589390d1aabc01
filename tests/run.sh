#!/usr/bin/env bash
# Installs what the tests need and runs them: formatting, lint, types, import direction, tests.
#     ./tests/run.sh [--system] [--reboot] [--reference] [--all] [-- PYTEST ARGUMENTS]
# --system adds the tests that take long, or need more of the machine than most, and runs all in two processes;
# --reboot those that start an emulated computer; --reference those that compare with transformers, for which it makes
# an environment with torch (1.2 GB, once); --all is all of them.
# All that is assumed is python3 with venv and pip. A second run installs and fetches nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

system='' reboot='' reference=''
while [ $# -gt 0 ]; do
    case "$1" in
        --system) system=yes ;;
        --reboot) reboot=yes ;;
        --reference) reference=yes ;;
        --all) system=yes reboot=yes reference=yes ;;
        --) shift && break ;;
        -h | --help) sed -n '2,7s/^# *//p' tests/run.sh && exit 0 ;;
        *) echo "error: unknown option $1 (arguments for pytest come after --)" >&2 && exit 2 ;;
    esac
    shift
done
selected=()
[ -z "$system" ] || selected=(-n 2)
case "$system,$reboot" in
    yes,yes) selected+=(-m "") ;;
    yes,) selected+=(-m "not boots") ;;
    ,yes) selected+=(-m "not system or boots") ;;
esac

. examples/environment.sh
make_environment "$PWD/.venv" -e "./runtime" -e ".[test]"
"$python" examples/fetch_models.py >/dev/null

# Without them their tests are skipped, and say so; but where changes are judged that must not pass.
if [ -n "$system" ] && ! tests/system/browser.sh >/dev/null; then
    echo "${CI:+error: }no browser to look at reports with: apt could not install chromium" >&2
    [ -z "${CI:-}" ] || exit 1
fi
if [ -n "$system" ] && ! tests/system/delivery.sh >/dev/null; then
    echo "${CI:+error: }no machines to deliver to: apt could not install sshd, rsync and what the files are for" >&2
    [ -z "${CI:-}" ] || exit 1
fi
if [ -n "$reference" ] && ! { tests/reference/setup.sh && tests/reference/huggingface.sh; } >/dev/null; then
    echo "${CI:+error: }no models of transformers to compare with: their environment could not be made" >&2
    [ -z "${CI:-}" ] || exit 1
fi

# Every check runs, whatever the ones before it found; the tests come last, so that their count closes the output.
failed=0
check() {
    echo "== $*"
    "$PWD/.venv/bin/$1" "${@:2}" || failed=1
}
check ruff check .
check ruff format --check .
check mypy
check lint-imports
check pytest "${selected[@]}" "$@"
exit "$failed"
