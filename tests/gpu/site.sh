#!/bin/sh
# site.sh COMMAND...: runs a command where this checkout is installed for the machine's own PyTorch.
#
# The machine needs Python >= 3.11 with PyTorch for CUDA, a C compiler, CMake and Ninja. What else is missing is
# installed into build/gpu-site: from wheels in .cache/gpu-wheels (wheels.sh fetches them, for machines
# without a network) if that folder is there, else from the package index.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
site=$root/build/gpu-site
python=${PYTHON:-python3}

"$python" - <<'PY' || { echo "PyTorch of $python finds no GPU; set PYTHON to one that has CUDA" >&2; exit 1; }
import sys, torch
sys.exit(not torch.cuda.is_available())
PY

missing=$("$python" - tests/gpu/requirements.txt <<'PY'
import re, sys
from importlib.metadata import PackageNotFoundError, version
for line in open(sys.argv[1]):
    name = re.match(r"[\w.-]*", line)[0]
    if name:
        try:
            version(name)
        except PackageNotFoundError:
            print(line.partition("#")[0].strip())
PY
)
if [ -d .cache/gpu-wheels ]; then
    from="--no-index --find-links .cache/gpu-wheels"
else
    from=
fi
PYTHONPATH=$("$python" -c 'import sys, sysconfig
print(sysconfig.get_path("purelib", "venv", {"base": sys.argv[1]}))' "$site")
export PYTHONPATH
pip="$python -m pip --quiet --disable-pip-version-check install --root-user-action ignore --no-deps --ignore-installed --prefix $site"
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086 # one requirement a word
    $pip $from $missing
fi
$pip --no-build-isolation .
TIERLINE_LIBRARY=$site/lib/tierline/libtierline.so
test -f "$TIERLINE_LIBRARY" || { echo "the installation has no $TIERLINE_LIBRARY" >&2; exit 1; }
export TIERLINE_LIBRARY
exec "$@"
