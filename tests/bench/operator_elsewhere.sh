#!/bin/sh
# operator_elsewhere.sh [OPTION...]: runs tests.bench.operator on a machine without a network, from what
# tests.bench.carried put into .cache/operator-bench.
#
# Needs the Python that the wheels are for, with pip and NumPy (PYTHON), openssl and xz.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
carried=.cache/operator-bench
site=build/operator-bench
rm -rf "$site"
mkdir -p "$site/programs" "$site/python"
xz -dc "$carried/kubernetes.tar.xz" | tar --directory "$site/programs" -x
"$python" -m pip --quiet --disable-pip-version-check install --root-user-action ignore --no-index --no-deps \
    --target "$site/python" "$carried"/*.whl
"$python" images/describe.py pyproject.toml "$("$python" -c '
import tomllib
print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')" "$site/python"
PYTHONPATH=$PWD/$site/python:$PWD:$PWD/crds:$PWD/operator:$PWD/cluster
export PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
exec "$python" -m tests.bench.operator --programs "$site/programs" --rights "$carried/rights.yaml" "$@"
