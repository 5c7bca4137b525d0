"""HTTP/2 frames, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.http2 import frames
from loadtest.http2.frames import FrameBuffer, ProtocolError

FRAME = st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=70_000))


@given(st.lists(FRAME, max_size=4), st.lists(st.integers(1, 5000), min_size=1))
def test_frames_survive_any_cutting(sent: list[tuple[int, int, int, bytes]], cuts: list[int]) -> None:
    wire = b"".join(frames.pack(*frame) for frame in sent)
    buffer, received, position, turn = FrameBuffer(), [], 0, 0
    while position < len(wire):
        size = cuts[turn % len(cuts)]
        received += buffer.feed(wire[position : position + size])
        position, turn = position + size, turn + 1
    assert received == sent


def test_padding_and_priority_are_stripped() -> None:
    assert frames.strip_padding(frames.PADDED, b"\x02body..") == b"body"
    assert frames.strip_padding(frames.PADDED | frames.PRIORITY, b"\x01" + b"12345" + b"block" + b".") == b"block"
    assert frames.strip_padding(0, b"body") == b"body"


def test_more_padding_than_payload_is_refused() -> None:
    with pytest.raises(ProtocolError, match="padding"):
        frames.strip_padding(frames.PADDED, b"\x09body")


def test_short_and_odd_frames_are_refused() -> None:
    with pytest.raises(ProtocolError, match="too short"):
        frames.read_word(b"abc")
    with pytest.raises(ProtocolError, match="SETTINGS"):
        frames.read_settings(b"1234567")
