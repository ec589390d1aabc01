#!/usr/bin/env bash
# Makes a minimal Debian to install bundles into: the packages of a fresh system with python3, unpacked, and its users.
#     tests/system/debian.sh SUITE ARCHITECTURE DIR [PACKAGE,...]
# It is left as it is where it is there already. Nothing in it has run, so any architecture can be made on any machine.
set -euo pipefail
suite=$1 architecture=$2 directory=$3 more=${4:+,$4}
[ ! -d "$directory" ] || exit 0
command -v debootstrap >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends debootstrap
} >&2
mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\) .*/\2/p' \
    /etc/apt/sources.list.d/* /etc/apt/sources.list 2>/dev/null | grep -v security | head -n 1) || true
part=$directory.part
rm -rf "$part"
mkdir -p "$(dirname "$directory")"
debootstrap --arch="$architecture" --foreign --variant=minbase --include="python3,libstdc++6,passwd,util-linux$more" \
    "$suite" "$part" "${mirror:-http://deb.debian.org/debian}" >&2
for package in "$part"/var/cache/apt/archives/*.deb; do
    dpkg-deb -x "$package" "$part"
done
rm -rf "$part"/var/cache/apt/archives/*.deb "$part/debootstrap"
cp "$part/usr/share/base-passwd/passwd.master" "$part/etc/passwd"
cp "$part/usr/share/base-passwd/group.master" "$part/etc/group"
touch "$part/etc/shadow" "$part/etc/gshadow"
mv "$part" "$directory"
