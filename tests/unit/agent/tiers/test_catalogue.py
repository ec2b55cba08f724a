from __future__ import annotations

from tierline_agent.tiers.catalogue import Catalogue, Claim, Entry

A, B, C = (bytes([letter]) * 32 for letter in b"abc")
TAG = bytes(16)


def test_free_slots_are_taken_in_order_until_none_is_left() -> None:
    catalogue = _catalogue(2)
    assert catalogue.claim(A) == Claim(0, suspect=False, evicted=False)
    assert catalogue.claim(B) == Claim(1, suspect=False, evicted=False)
    assert catalogue.claim(C) is None


def test_the_least_recently_used_content_goes_first() -> None:
    catalogue = _catalogue(2)
    a, b = _put(catalogue, A), _put(catalogue, B)
    catalogue.unreference(b)
    catalogue.unreference(a)
    catalogue.pin(b)  # a read makes it the most recent again
    catalogue.unpin(b)
    assert catalogue.claim(C) == Claim(0, suspect=False, evicted=True)
    assert catalogue.find(A) is None
    assert catalogue.find(B) is b


def test_referenced_and_pinned_content_stays() -> None:
    catalogue = _catalogue(2)
    _put(catalogue, A)
    b = _put(catalogue, B)
    catalogue.unreference(b)
    catalogue.pin(b)
    assert catalogue.claim(C) is None
    catalogue.unpin(b)
    assert catalogue.claim(C) == Claim(1, suspect=False, evicted=True)


def test_unsound_content_goes_before_sound_and_leaves_a_suspect_slot() -> None:
    catalogue = _catalogue(2)
    a, b = _put(catalogue, A), _put(catalogue, B)
    catalogue.unreference(a)
    catalogue.condemn(b, corrupt=True)
    catalogue.unreference(b)
    assert catalogue.claim(C) == Claim(1, suspect=True, evicted=False)
    assert catalogue.find(B) is None


def test_unsound_content_is_rewritten_in_its_own_slot_for_all_who_refer_to_it() -> None:
    catalogue = _catalogue(2)
    a = _put(catalogue, A)
    catalogue.condemn(a, corrupt=True)
    claim = catalogue.claim(A)
    assert claim == Claim(0, suspect=True, evicted=False)
    assert catalogue.settle(claim, A, TAG, 10) is a
    assert (a.sound, a.corrupt, a.slot, a.references) == (True, False, 0, 2)


def test_a_failed_write_leaves_its_slot_suspect() -> None:
    catalogue = _catalogue(1)
    claim = catalogue.claim(A)
    assert claim is not None
    catalogue.abandon(claim, A)
    assert (catalogue.free, catalogue.claimed) == (1, 0)
    assert catalogue.claim(A) == Claim(0, suspect=True, evicted=False)


def test_a_retired_slot_never_comes_back() -> None:
    catalogue = _catalogue(1)
    a = _put(catalogue, A)
    catalogue.condemn(a, corrupt=True)
    assert catalogue.claim(A) is not None
    catalogue.retire(A)
    assert (catalogue.retired, catalogue.free, a.slot) == (1, 0, None)
    assert catalogue.claim(A) is None
    catalogue.unreference(a)
    assert catalogue.find(A) is None


def test_content_that_the_medium_delivers_after_all_is_sound_again() -> None:
    catalogue = _catalogue(1)
    a = _put(catalogue, A)
    catalogue.unreference(a)
    catalogue.condemn(a, corrupt=False)
    catalogue.exonerate(a)
    assert catalogue.claim(B) == Claim(0, suspect=False, evicted=True)


def test_of_two_copies_the_younger_is_loaded() -> None:
    catalogue = Catalogue(2)
    catalogue.load(Entry(A, TAG, 10, 0))
    catalogue.load(Entry(A, TAG, 10, 1))
    entry = catalogue.find(A)
    assert entry is not None
    assert entry.slot == 1
    assert catalogue.free == 1


def _catalogue(slots: int) -> Catalogue:
    catalogue = Catalogue(slots)
    for slot in range(slots):
        catalogue.load_free(slot)
    return catalogue


def _put(catalogue: Catalogue, digest: bytes) -> Entry:
    claim = catalogue.claim(digest)
    assert claim is not None
    return catalogue.settle(claim, digest, TAG, 10)
