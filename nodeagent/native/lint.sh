#!/bin/sh
# Checks the C of the client library and of its tests: format, then clang-tidy. Changes nothing.
#   lint.sh [FOLDER OF CMAKE AND NINJA]
set -eu
cd "$(dirname "$0")/../.."
tools=${1:-.venv/bin}
files=$(ls nodeagent/native/src/*.[ch] nodeagent/native/include/tierline/*.h \
           nodeagent/native/interposer/src/*.[ch] nodeagent/native/simcuda/*/*.[ch] \
           tests/native/*.[ch] tests/interposer/*.[ch] tests/simcuda/*.[ch] tests/fuzz/*.c)
# shellcheck disable=SC2086
clang-format --style=file:nodeagent/native/.clang-format --dry-run -Werror $files
"$tools/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$(realpath "$tools/ninja")" -S nodeagent/native \
    -B build/native-lint -DTIERLINE_TESTS=ON > /dev/null
# shellcheck disable=SC2046
clang-tidy --quiet -p build/native-lint --config-file=nodeagent/native/.clang-tidy \
    $(ls nodeagent/native/src/*.c tests/native/*.c) 2> build/native-lint/tidy.log
