#!/bin/sh
# packages.sh NAME...: makes sure that these Debian packages are there. Installs the missing ones when it
# runs as root, and otherwise says what to install: a missing tool fails the run, it never skips.
set -eu
missing=
for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing="$missing $name"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "these Debian packages are needed:$missing; install them with: sudo apt-get install$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# shellcheck disable=SC2086 # one word a package
apt-get -qq install -y --no-install-recommends $missing >/dev/null
