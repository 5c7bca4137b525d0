"""What a request may ask for: told by GetServerInfo, enforced by validation, from one place."""

from __future__ import annotations

import msgspec

from server.config import Config
from server.engine import EngineInfo


class RequestLimits(msgspec.Struct, frozen=True):
    """Numbers as the protocol's Limits message names them."""

    vocab_size: int
    max_context: int
    max_prompt_tokens: int
    """One less than the context: there must be room for a first token."""
    default_max_tokens: int
    max_message_bytes: int
    max_stop_strings: int
    max_stop_string_bytes: int
    max_stop_token_ids: int
    max_cache_salt_bytes: int
    max_sequences: int
    max_waiting_requests: int
    max_waiting_tokens: int
    block_size: int


def request_limits(config: Config, info: EngineInfo) -> RequestLimits:
    """The limits that follow from the configuration and the loaded engine."""
    return RequestLimits(
        vocab_size=info.vocab_size,
        max_context=info.max_context,
        max_prompt_tokens=info.max_context - 1,
        default_max_tokens=config.limits.default_max_tokens,
        max_message_bytes=config.grpc.max_message_bytes,
        max_stop_strings=config.limits.max_stop_strings,
        max_stop_string_bytes=config.limits.max_stop_string_bytes,
        max_stop_token_ids=config.limits.max_stop_token_ids,
        max_cache_salt_bytes=config.limits.max_cache_salt_bytes,
        max_sequences=info.max_sequences,
        max_waiting_requests=config.admission.max_waiting_requests,
        max_waiting_tokens=config.admission.max_waiting_tokens,
        block_size=info.block_size,
    )
