#!/usr/bin/env bash
# Installs a browser for the tests that look at reports, where there is none and apt may: Debian's chromium.
set -euo pipefail
command -v chromium >/dev/null && exit
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium
