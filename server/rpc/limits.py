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
    max_outputs: int
    max_top_logprobs: int
    max_logit_biases: int
    max_bad_words: int
    max_bad_word_size: int
    max_guide_bytes: int
    max_request_id_size: int


def request_limits(config: Config, info: EngineInfo) -> RequestLimits:
    """The limits that follow from the configuration and the loaded engine."""
    limits = config.limits
    return RequestLimits(
        vocab_size=info.vocab_size,
        max_context=info.max_context,
        max_prompt_tokens=info.max_context - 1,
        default_max_tokens=limits.default_max_tokens,
        max_message_bytes=config.grpc.max_message_bytes,
        max_stop_strings=limits.max_stop_strings,
        max_stop_string_bytes=limits.max_stop_string_bytes,
        max_stop_token_ids=limits.max_stop_token_ids,
        max_cache_salt_bytes=limits.max_cache_salt_bytes,
        max_sequences=info.max_sequences,
        max_waiting_requests=config.admission.max_waiting_requests,
        max_waiting_tokens=config.admission.max_waiting_tokens,
        block_size=info.block_size,
        # An executor must seat all outputs of a request at once.
        max_outputs=min(limits.max_outputs, info.max_sequences),
        max_top_logprobs=min(limits.max_top_logprobs, info.vocab_size, *_offered(info.capabilities.top_logprobs)),
        max_logit_biases=limits.max_logit_biases,
        max_bad_words=limits.max_bad_words,
        max_bad_word_size=limits.max_bad_word_size,
        max_guide_bytes=limits.max_guide_bytes,
        max_request_id_size=limits.max_request_id_size,
    )


def _offered(count: int | None) -> tuple[int, ...]:
    return () if count is None else (count,)
