#!/bin/sh
# Checks the C of the client library, the interposer, the simulated driver and their tests: format,
# then clang-tidy. Changes nothing.
#   lint.sh [FOLDER OF CMAKE AND NINJA]
set -eu
cd "$(dirname "$0")/../.."
tools=${1:-.venv/bin}
files=$(ls nodeagent/native/src/*/*.[ch] nodeagent/native/include/tierline/*.h \
           nodeagent/native/interposer/src/*/*.[ch] tests/simcuda/driver/*/*.[ch] \
           tests/native/*.[ch] tests/interposer/*.[ch] tests/simcuda/*.[ch] tests/fuzz/*.c tests/cuda/*.[ch])
# shellcheck disable=SC2086
clang-format --style=file:nodeagent/native/.clang-format --dry-run -Werror $files
configure() {
    folder=$1
    shift
    "$tools/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$(realpath "$tools/ninja")" -B "build/$folder" "$@" \
        > /dev/null
}
# tidy FOLDER CHECKS FILE...: as many files at once as there are cores, but those that are known to be clean.
tidy() {
    folder=$1
    shift
    PYTHONPATH=cluster "$tools/python" -m tests.tidy "build/$folder" "$@"
}
configure native-lint -S nodeagent/native -DTIERLINE_TESTS=ON
# shellcheck disable=SC2046
tidy native-lint '' $(ls nodeagent/native/src/*/*.c nodeagent/native/interposer/src/*/*.c tests/native/*.c)
cuda=$("$tools/python" -c 'from tests.native_builds import cuda_include; print(cuda_include())')
configure simcuda-lint -S tests/simcuda/driver -DSIMCUDA_CUDA_INCLUDE="$cuda"
"$tools/cmake" --build build/simcuda-lint --target generated/entries.h > /dev/null
# A simulated device's addresses are those of this process, its graphs nest, its signatures are
# NVIDIA's, and what it scans is checked for its range.
tidy simcuda-lint \
    -performance-no-int-to-ptr,-misc-no-recursion,-readability-non-const-parameter,-cert-err34-c \
    tests/simcuda/driver/*/*.c
