#!/bin/sh
# wheels.sh [PYTHON-VERSION]: fetches what site.sh may have to install on a machine without a network, as wheels into
# .cache/gpu-wheels. PYTHON-VERSION is the GPU machine's (default 3.12).
set -eu
cd "$(dirname "$0")/../.."
rm -rf .cache/gpu-wheels
platforms=
for n in 5 12 17 24 27 28 31 34 35 39; do
    platforms="$platforms --platform manylinux_2_${n}_x86_64"
done
# shellcheck disable=SC2086 # options
.venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version "${1:-3.12}" --implementation cp $platforms --platform manylinux2014_x86_64 \
    --dest .cache/gpu-wheels --requirement tests/gpu/requirements.txt
