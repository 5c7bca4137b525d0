"""What passes between the supervisor and a rank: one JSON object a line."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A rank's first word."""

    rank: int
    pid: int


class Report(msgspec.Struct, frozen=True, tag="report"):
    """How far a rank has come."""

    state: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A rank's last word: it goes by itself now, with this exit status."""

    status: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """To the leader: take nothing new, finish what runs, end. A second one: end at once."""


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    """To the leader: the job cannot go on; end every stream with this reason."""

    why: str


FromRank: TypeAlias = Hello | Report | Ended
ToRank: TypeAlias = Drain | Fail

LOADING, LOADED = "loading", "loaded"


def line(message: FromRank | ToRank) -> bytes:
    return msgspec.json.encode(message) + b"\n"


_from_rank: msgspec.json.Decoder[FromRank] = msgspec.json.Decoder(FromRank)
_to_rank: msgspec.json.Decoder[ToRank] = msgspec.json.Decoder(ToRank)


def from_rank(text: bytes) -> FromRank:
    """Raises msgspec.DecodeError."""
    return _from_rank.decode(text)


def to_rank(text: bytes) -> ToRank:
    """Raises msgspec.DecodeError."""
    return _to_rank.decode(text)
