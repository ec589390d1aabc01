#!/usr/bin/env bash
# Installs what the tests of deliveries need, where it is missing and apt may: sshd and rsync for the machines, and the
# programs that the rendered files are for.
set -euo pipefail
declare -A package=(
    [ip]=iproute2 [/usr/sbin/sshd]=openssh-server [rsync]=rsync [sudo]=sudo
    [shellcheck]=shellcheck [haproxy]=haproxy [docker-compose]=docker-compose [openssl]=openssl
)
missing=()
for program in "${!package[@]}"; do
    command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[ -n "${missing[*]}" ] || exit 0
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
