#!/bin/sh
# run.sh OUT [OPTION...]: unpacks the archives in .cache/gpu-e2e, unless that is done, and runs tests.gpu_e2e. Root.
#
# Needs Python >= 3.11 with PyTorch and transformers (PYTHON; Tierline's development environment is none: pods see no
# working tree), util-linux, openssl and xz. What it changes on the machine while it runs: a bridge, control groups,
# mounts in a namespace of its own, /var/run/cdi.
set -eu
cd "$(dirname "$0")/../.."
out=$1
shift
archives=.cache/gpu-e2e
carried=$PWD/build/gpu-e2e/carried
mkdir -p "$out"
if ! [ "$carried/done" -nt "$archives/images.tar.xz.00" ]; then
    rm -rf "$carried"
    mkdir -p "$carried"
    cat "$archives"/programs.tar.xz.* | xz -dc | tar --directory "$carried" -x &
    cat "$archives"/images.tar.xz.* | xz -dc | tar --directory "$carried" -x
    wait $!
    touch "$carried/done"
fi
# Of all that is carried, runc's library alone must lie where the system looks.
if ! ldconfig -p | grep -q libseccomp.so.2; then
    cp "$carried"/libraries/libseccomp.so.* /usr/local/lib/
    ldconfig
    trap 'rm -f /usr/local/lib/libseccomp.so.*; ldconfig' EXIT
fi
PYTHONPATH=.:cluster PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    ${PYTHON:-python3} -m tests.gpu_e2e --carried "$carried" --out "$out" "$@"
