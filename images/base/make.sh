#!/usr/bin/env bash
# make.sh SUITE ARCHIVE: what the image debian:SUITE-slim holds, from this machine's Debian sources alone.
#
# A stand-in for machines without a registry; a release builds on the official image by its digest. The
# same state of Debian's archive gives the same bytes. Root; packages mmdebstrap, debian-archive-keyring.
set -euo pipefail
suite=$1 archive=$2 here=$(cd "$(dirname "$0")" && pwd)
sources=$(mktemp --suffix=.sources)
trap 'rm -f "$sources"' EXIT
sed '/^#/d' /etc/apt/sources.list.d/debian.sources > "$sources"
chmod 644 "$sources"
leave_out=()
for folder in doc man info locale groff lintian linda; do
    leave_out+=(--dpkgopt="path-exclude=/usr/share/$folder/*")
done
# Without the hook, the package usrmerge would bring perl. Device nodes come from the runtime.
mmdebstrap --quiet --mode=root --variant=minbase --format=tar --skip=output/dev \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    "${leave_out[@]}" --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --aptopt='Acquire::Languages "none"' \
    --customize-hook="$here/slim.sh" "$suite" "$archive" "$sources"
