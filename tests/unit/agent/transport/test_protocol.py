"""The Python codec: golden vectors shared with C, and what any input must leave true."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.agent.transport.describe import Golden, describe, golden_vectors

from tierline_agent.transport import protocol
from tierline_agent.transport.protocol import Decoder, ErrorCode, ProtocolError

VECTORS = golden_vectors()
ACCEPTED = [v for v in VECTORS if v.described is not None]
REFUSED = [v for v in VECTORS if v.code is not None]


def decode_frame(frame: bytes) -> tuple[int, protocol.Message]:
    decoder = Decoder()
    decoder.feed(frame)
    ((sequence, message),) = list(decoder)
    return sequence, message


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda v: v.name)
def test_a_golden_frame_decodes_to_its_message_and_encodes_back(vector: Golden) -> None:
    sequence, message = decode_frame(vector.frame)
    assert describe(message) == vector.described
    assert protocol.encode(message, sequence) == vector.frame


@pytest.mark.parametrize("vector", REFUSED, ids=lambda v: v.name)
def test_a_frame_that_breaks_a_rule_is_refused_with_its_code(vector: Golden) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_frame(vector.frame)
    assert caught.value.code == vector.code


def test_the_vectors_show_every_message() -> None:
    shown = {type(decode_frame(v.frame)[1]) for v in ACCEPTED}
    assert shown == protocol.FROM_CLIENT | protocol.FROM_AGENT


@given(st.lists(st.sampled_from(ACCEPTED), max_size=6), st.integers(1, 90))
def test_pieces_of_any_size_give_the_same_messages(vectors: list[Golden], step: int) -> None:
    stream = b"".join(v.frame for v in vectors)
    decoder, got, at = Decoder(), [], 0
    while at < len(stream):
        decoder.feed(stream[at : at + step])
        at += step
        got += [describe(message) for _, message in decoder]
        assert decoder.buffered_bytes < protocol.HEADER_BYTES + protocol.MAX_PAYLOAD
    assert got == [v.described for v in vectors]
    assert decoder.buffered_bytes == 0


@given(st.binary(max_size=400), st.sampled_from([*range(42), 255]))
def test_any_payload_is_refused_or_survives_a_round_trip(payload: bytes, type_: int) -> None:
    try:
        message = protocol.decode(type_, payload)
    except ProtocolError:
        return
    assert protocol.encode(message, 1)[protocol.HEADER_BYTES :] == payload


def test_a_length_over_the_limit_is_refused_before_its_payload_arrives() -> None:
    decoder = Decoder(max_payload=16)
    decoder.feed(struct.pack("<IHHI", 17, 15, 0, 1))
    with pytest.raises(ProtocolError, match="longer than 16 bytes"):
        list(decoder)
    assert decoder.buffered_bytes == 0


def test_a_broken_stream_stays_broken() -> None:
    decoder = Decoder()
    decoder.feed(REFUSED[0].frame)
    with pytest.raises(ProtocolError):
        list(decoder)
    with pytest.raises(ProtocolError):
        decoder.feed(ACCEPTED[0].frame)


@pytest.mark.parametrize(
    "message",
    [
        protocol.Ack(job=0),
        protocol.Ack(job=2**64),
        protocol.Error(code=ErrorCode.IO, reason="x" * 240),
        protocol.Error(code=ErrorCode.IO, reason="a\0b"),
        protocol.Stored(arena=1, extent=1, digest=b"short"),
        protocol.Reserved(arena=1, resident_count=0, ring_slots=1, placement=()),
        protocol.Reserved(arena=1, resident_count=0, ring_slots=1, placement=(0,) * 16381),
        protocol.Free(arena=16),
    ],
    ids=["job 0", "job too large", "reason too long", "reason with NUL", "digest too short",
         "no placement", "payload over 64 KiB", "arena 16"],
)  # fmt: skip
def test_what_does_not_fit_is_not_encoded(message: protocol.Message) -> None:
    with pytest.raises(ProtocolError):
        protocol.encode(message, 1)


def test_each_request_names_a_reply_of_the_other_side() -> None:
    for request, reply in protocol.REPLY_OF.items():
        assert request in protocol.FROM_CLIENT
        assert reply in protocol.FROM_AGENT
