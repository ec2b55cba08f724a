from __future__ import annotations

import torch
from tests.differences import difference

from tierline_examples.inputs import pictures, sentences


def test_pictures_are_different_and_always_the_same() -> None:
    made = pictures(4, 64)
    assert [tuple(picture.shape) for picture in made] == [(1, 3, 64, 64)] * 4
    assert all(picture.dtype == torch.float32 and picture.isfinite().all() for picture in made)
    assert len({tuple(picture.flatten().tolist()) for picture in made}) == 4
    assert difference(made, pictures(4, 64)) is None


def test_sentences_are_marked_padded_and_in_the_vocabulary() -> None:
    made = sentences(5)
    assert difference(made[0], made[4]) is None
    assert difference(made[0], made[1]) is not None
    for sentence in made:
        ids, mask = sentence["input_ids"], sentence["attention_mask"]
        assert ids.shape == mask.shape == (1, 32)
        words = int(mask.sum())
        assert ids[0, 0] == 101
        assert ids[0, words - 1] == 102
        assert not ids[0, words:].any()
        assert int(ids.max()) < 30522
