#!/bin/sh
# Fuzzes both codecs for SECONDS each, one after the other, then compares their verdicts on all that
# was found: run.sh SECONDS. Needs clang with libFuzzer; atheris is fetched into build/fuzz.
# What was found lies in build/fuzz/found; copy what is worth keeping to tests/fuzz/corpus.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:?usage: run.sh SECONDS}
bin=$PWD/.venv/bin
work=build/fuzz
found=$work/found
mkdir -p "$found" "$work/merged"

"$bin/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" -S nodeagent/native -B "$work/c" \
    -DCMAKE_C_COMPILER=clang -DTIERLINE_TESTS=ON -DTIERLINE_FUZZ=ON \
    -DTIERLINE_SANITIZE=address,undefined > /dev/null
"$bin/cmake" --build "$work/c" > /dev/null
test -d "$work/python/atheris" ||
    "$bin/uv" pip install --quiet --python "$bin/python" --target "$work/python" atheris
export PYTHONPATH="$PWD:$PWD/$work/python"
"$bin/python" -m tests.fuzz.seeds "$work/seeds"

echo "== C codec, libFuzzer, $seconds s"
"$work/c/native-tests/fuzz_codec" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$work/" \
    "$found" "$work/seeds" tests/fuzz/corpus
echo "== Python codec, atheris, $seconds s"
"$bin/python" tests/fuzz/fuzz_codec.py -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$work/" \
    "$found" "$work/seeds" tests/fuzz/corpus

echo "== both codecs on everything found"
find "$found" "$work/seeds" tests/fuzz/corpus -type f | sort > "$work/files"
"$work/c/native-tests/codec_verdicts" < "$work/files" > "$work/verdicts.c"
"$bin/python" -m tests.fuzz.verdicts < "$work/files" > "$work/verdicts.python"
cmp "$work/verdicts.c" "$work/verdicts.python"
echo "$(wc -l < "$work/files") inputs, $(sort -u "$work/verdicts.c" | wc -l) verdicts, all alike"
"$work/c/native-tests/fuzz_codec" -merge=1 -verbosity=0 "$work/merged" "$found" tests/fuzz/corpus \
    2> /dev/null
