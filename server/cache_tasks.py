"""What can be asked about the prefix cache while the engine runs, and the answers: names and sizes, never tokens. Encodable, like all of the
engine's messages."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class PinPrompt(msgspec.Struct, frozen=True, tag="pin_prompt"):
    """Keep the full blocks of a prompt that was just computed."""

    prompt: tuple[int, ...]
    salt: bytes
    """The whole one: tenant's and request's."""
    seconds: float


class PinPrefix(msgspec.Struct, frozen=True, tag="pin_prefix"):
    """Keep what is cached under a name."""

    name: bytes
    seconds: float


class UnpinPrefix(msgspec.Struct, frozen=True, tag="unpin_prefix"):
    name: bytes


class ListPrefixes(msgspec.Struct, frozen=True, tag="list_prefixes"):
    """The hottest."""

    count: int


class ClearCache(msgspec.Struct, frozen=True, tag="clear_cache"):
    pins: bool
    """The pinned ones, too."""


CacheTask: TypeAlias = PinPrompt | PinPrefix | UnpinPrefix | ListPrefixes | ClearCache


class Tend(msgspec.Struct, frozen=True, tag="tend"):
    """A task on its way to the engine thread."""

    ticket: int
    """Names the question, so that the answer finds back."""
    task: CacheTask


class CachedPrefix(msgspec.Struct, frozen=True):
    """The beginning that some prompts share, from their first token on."""

    name: bytes
    """Of its last block: a hash over all its tokens, the engine and the salt."""
    tokens: int
    blocks: int
    size: int
    """Bytes of keys and values."""
    reuses: int
    """How often its last block was taken over instead of being computed."""
    in_use: bool
    """By a running request, or by a pin."""
    pinned_for: float | None
    """Seconds that its pin still lasts; None = it has none."""


class Cleared(msgspec.Struct, frozen=True):
    forgotten: int
    """Blocks."""
    kept: int
    """Published blocks that are in use, and stay until they are not."""


class SavedCacheStats(msgspec.Struct, frozen=True):
    """What became of the prefix cache's file."""

    saves: dict[str, int] = {}
    """How often, by outcome: saved, failed."""
    restores: dict[str, int] = {}
    """The same: restored, foreign, corrupt, unreadable."""
    saved_blocks: int = 0
    """By the last save."""
    restored_blocks: int = 0
