"""Replays the fuzzers' corpus: both codecs say the same of every input that was of interest."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fuzz.seeds import write_seeds
from tests.fuzz.verdicts import verdict
from tests.native_builds import build

CORPUS = Path(__file__).parent / "corpus"


def test_both_codecs_judge_the_corpus_alike(tmp_path: Path) -> None:
    write_seeds(tmp_path)
    inputs = sorted([*CORPUS.iterdir(), *tmp_path.iterdir()])
    assert len(inputs) > 100
    judged = subprocess.run(
        [build("address") / "native-tests" / "codec_verdicts"],
        input="".join(f"{path}\n" for path in inputs),
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert judged == [verdict(path.read_bytes()) for path in inputs]
