"""Prompts as they come over the wire: text, token ids, or a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.rpc.limits import RequestLimits
from server.text.chat import ChatMessage

PromptField = Literal["prompt.text", "prompt.token_ids", "prompt.messages"]


class PromptSource(msgspec.Struct, frozen=True):
    """What was given. Exactly one of the three is set, and it is not empty."""

    field: PromptField
    text: str = ""
    ids: tuple[int, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    tools: tuple[object, ...] = ()
    size: int = 0
    """Bytes of text that a tokenizer would have to read, about."""


def check_prompt(prompt: pb.Prompt, limits: RequestLimits, *, keep: int | None = None) -> PromptSource:
    """``keep``: of ids that many, the last; what is cut off is never looked at. Raises InvalidRequestError naming the field."""
    kind = prompt.WhichOneof("kind")
    if kind == "text":
        if not prompt.text:
            raise InvalidRequestError("prompt.text", "must not be empty")
        return PromptSource("prompt.text", text=prompt.text, size=len(prompt.text))
    if kind == "token_ids":
        return PromptSource("prompt.token_ids", ids=_token_ids(prompt.token_ids.ids, limits, keep))
    if kind == "messages":
        return PromptSource(
            "prompt.messages",
            messages=_messages(prompt.messages.messages, limits),
            tools=_tools(prompt.messages.tools),
            size=prompt.ByteSize(),
        )
    raise InvalidRequestError("prompt", "is required: set one of text, token_ids and messages")


def check_ids(field: str, ids: Sequence[int], vocab_size: int, *, first: int = 0) -> None:
    """``first``: where in the field ``ids`` begin. Raises InvalidRequestError for the first id outside the vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    index, value = next((index, value) for index, value in enumerate(ids, first) if not 0 <= value < vocab_size)
    raise InvalidRequestError(f"{field}[{index}]", f"must be from 0 to {vocab_size - 1}, it is {value}")


def _token_ids(ids: Sequence[int], limits: RequestLimits, keep: int | None) -> tuple[int, ...]:
    count = len(ids)
    if not count:
        raise InvalidRequestError("prompt.token_ids", "must have at least 1 token, it has 0")
    if keep is None and count > limits.max_prompt_tokens:
        raise InvalidRequestError(
            "prompt.token_ids", f"must have at most {limits.max_prompt_tokens} tokens, it has {count}"
        )
    # A message holds millions, and this runs on the event loop.
    first = 0 if keep is None else max(0, count - keep)
    kept = tuple(ids[first:])
    check_ids("prompt.token_ids.ids", kept, limits.vocab_size, first=first)
    return kept


def _messages(messages: Sequence[pb.Message], limits: RequestLimits) -> tuple[ChatMessage, ...]:
    if not messages:
        raise InvalidRequestError("prompt.messages", "must have at least 1 message, it has 0")
    if len(messages) > limits.max_prompt_tokens:
        # Each is a token at least. Rendering half a million, only to count them, would take seconds from everybody.
        raise InvalidRequestError(
            "prompt.messages", f"must have at most {limits.max_prompt_tokens} messages, it has {len(messages)}"
        )
    for index, message in enumerate(messages):
        if not message.role:
            raise InvalidRequestError(f"prompt.messages.messages[{index}].role", "must not be empty")
    return tuple(
        ChatMessage(message.role, message.content, _extra(f"prompt.messages.messages[{index}].extra", message.extra))
        for index, message in enumerate(messages)
    )


def _extra(field: str, text: str) -> dict[str, object]:
    if not text:
        return {}
    extra = _json(field, text)
    if not isinstance(extra, dict) or extra.keys() & {"role", "content"}:
        raise InvalidRequestError(field, "must be a JSON object without role and content")
    return extra


def _tools(text: str) -> tuple[object, ...]:
    if not text:
        return ()
    tools = _json("prompt.messages.tools", text)
    if not isinstance(tools, list):
        raise InvalidRequestError("prompt.messages.tools", "must be a JSON list")
    return tuple(tools)


def _json(field: str, text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(field, f"is no valid JSON: {error}") from error
