"""From a prompt as it came over the wire to token ids, off the event loop, with a bound on what waits."""

from __future__ import annotations

from collections.abc import Sequence

from server.errors import InvalidRequestError, OverloadedError
from server.rpc.prompts import PromptSource
from server.text.chat import ChatTemplate, Conversation
from server.text.tokenizer_pool import TokenizerPool


class PromptReader:
    """Admission by bytes, then tokenization. Event loop only."""

    def __init__(
        self, pool: TokenizerPool, template: ChatTemplate | None, *, max_bytes: int, retry_after: float
    ) -> None:
        """``max_bytes`` bounds the prompts that are being tokenized or wait for it, all together."""
        self._pool = pool
        self._template = template
        self._max_bytes = max_bytes
        self._retry_after = retry_after
        self._bytes = 0

    async def read(self, prompt: PromptSource) -> Sequence[int]:
        """The prompt's ids. Raises InvalidRequestError, OverloadedError and UnavailableError."""
        if prompt.ids:
            return prompt.ids
        self._enter(prompt.size)
        try:
            if prompt.messages:
                return await self._pool.encode_chat(
                    self._require_template(), Conversation(prompt.messages, prompt.tools)
                )
            return await self._pool.encode(prompt.text)
        finally:
            self._bytes -= prompt.size

    async def read_words(self, words: Sequence[str], *, field: str) -> list[list[int]]:
        """The runs of ids that spell each word. Raises as read()."""
        return await self._pool.encode_words(words, field=field) if words else []

    async def write(self, ids: Sequence[int], *, show_special_tokens: bool) -> str:
        """The text of ids. Raises as read()."""
        return await self._pool.decode(ids, show_special_tokens=show_special_tokens)

    def _enter(self, size: int) -> None:
        # An empty queue admits anything that a message can carry: a cap below one request would refuse it for ever.
        if self._bytes and self._bytes + size > self._max_bytes:
            raise OverloadedError(
                f"admission.max_tokenizing_bytes: {self._bytes} bytes of prompts wait for the tokenizer, {size} more would "
                f"exceed {self._max_bytes}",
                reason="tokenizing_bytes",
                retry_after=self._retry_after,
            )
        self._bytes += size

    def _require_template(self) -> ChatTemplate:
        if self._template is None:
            raise InvalidRequestError("prompt.messages", "the model has no chat template; use prompt.text")
        return self._template
