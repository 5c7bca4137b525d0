"""Tokenizing off the event loop: bounded, cancellable, closable."""

from __future__ import annotations

import asyncio
import threading

import pytest

from server.errors import InvalidRequestError, OverloadedError, UnavailableError
from server.text.chat import ChatMessage, ChatTemplate
from server.text.tokenizer import TextTokenizer
from server.text.tokenizer_pool import TokenizerPool
from tests.text.small_tokenizers import byte_level


class Gated(TextTokenizer):
    """Encodes only once the gate is open, and says on which threads."""

    def __init__(self) -> None:
        super().__init__(byte_level(), bos_id=0)
        self.gate = threading.Event()
        self.encoded: list[tuple[str, str]] = []

    def encode(self, text: str, *, add_bos: bool = True, field: str = "prompt.text") -> list[int]:
        self.gate.wait(60)
        self.encoded.append((text, threading.current_thread().name))
        return super().encode(text, add_bos=add_bos, field=field)


async def until_started(pool: TokenizerPool, jobs: int) -> None:
    while pool.jobs < jobs:  # noqa: ASYNC110 - the pool has no event to wait for
        await asyncio.sleep(0)


async def test_case_C6_long_texts_are_encoded_in_a_thread_while_the_loop_goes_on() -> None:
    tokenizer = Gated()
    pool = TokenizerPool(tokenizer, inline_characters=4)
    task = asyncio.create_task(pool.encode("long text"))
    for _ in range(100):
        await asyncio.sleep(0)  # the loop turns although the encode has not ended
    assert not task.done()
    tokenizer.gate.set()
    assert await task == TextTokenizer(byte_level(), bos_id=0).encode("long text")
    assert tokenizer.encoded[0][1].startswith("tokenizer")
    assert pool.jobs == 0
    pool.close()


async def test_short_texts_are_encoded_where_they_are() -> None:
    tokenizer = Gated()
    tokenizer.gate.set()
    pool = TokenizerPool(tokenizer, inline_characters=4)
    await pool.encode("abcd")
    assert tokenizer.encoded == [("abcd", threading.current_thread().name)]
    pool.close()


async def test_one_job_too_many_is_refused_with_a_delay_and_the_others_go_on() -> None:
    tokenizer = Gated()
    pool = TokenizerPool(tokenizer, workers=1, max_jobs=2, inline_characters=0)
    tasks = [asyncio.create_task(pool.encode(text)) for text in ("a", "b")]
    await until_started(pool, 2)
    with pytest.raises(OverloadedError, match="2 texts wait to be tokenized, the limit is 2") as caught:
        await pool.encode("c")
    assert caught.value.retry_after > 0
    tokenizer.gate.set()
    assert all(await asyncio.gather(*tasks))
    assert await pool.encode("c")
    pool.close()


async def test_short_texts_never_wait_behind_long_ones() -> None:
    """The gate holds back long texts only; as many come as there are threads of both kinds."""

    class LongGated(Gated):
        def encode(self, text: str, *, add_bos: bool = True, field: str = "prompt.text") -> list[int]:
            return super().encode(text, add_bos=add_bos, field=field) if len(text) > 9 else [1]

    tokenizer = LongGated()
    pool = TokenizerPool(tokenizer, workers=1, inline_characters=0)
    long = [asyncio.create_task(pool.encode("x" * 40_000)) for _ in range(2)]
    await until_started(pool, 2)
    assert await pool.encode("short") == [1]
    assert not any(task.done() for task in long)
    tokenizer.gate.set()
    await asyncio.gather(*long)
    assert {name.rsplit("_", 1)[0] for _, name in tokenizer.encoded} == {"tokenizer-long"}
    pool.close()


async def test_a_cancelled_job_that_waits_never_runs_and_frees_its_place() -> None:
    tokenizer = Gated()
    pool = TokenizerPool(tokenizer, workers=1, inline_characters=0)
    first, second = (asyncio.create_task(pool.encode(text)) for text in ("first", "second"))
    await until_started(pool, 2)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    tokenizer.gate.set()
    await first
    assert [text for text, _ in tokenizer.encoded] == ["first"]
    assert pool.jobs == 0
    pool.close()


async def test_close_drops_what_waits_and_refuses_what_comes() -> None:
    tokenizer = Gated()
    pool = TokenizerPool(tokenizer, workers=1, inline_characters=0)
    running, waiting = (asyncio.create_task(pool.encode(text)) for text in ("running", "waiting"))
    await until_started(pool, 2)
    closer = asyncio.create_task(asyncio.to_thread(pool.close))
    with pytest.raises(UnavailableError, match="shutting down"):
        await waiting
    tokenizer.gate.set()
    assert await running
    await closer
    with pytest.raises(UnavailableError, match="shutting down"):
        await pool.encode("late")
    pool.close()


async def test_errors_come_through_and_free_the_place() -> None:
    pool = TokenizerPool(TextTokenizer(byte_level()), inline_characters=0)
    with pytest.raises(InvalidRequestError, match=r"^prompt\.text: "):
        await pool.encode("\ud800")
    assert pool.jobs == 0
    pool.close()


async def test_chat_is_rendered_and_encoded_without_a_second_beginning_token() -> None:
    tokenizer = TextTokenizer(byte_level(), bos_id=0)
    pool = TokenizerPool(tokenizer)
    template = ChatTemplate("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", {"bos_token": "<s>"})
    ids = await pool.encode_chat(template, [ChatMessage("user", "fox")])
    assert ids == tokenizer.encode("fox")
    assert ids.count(0) == 1
    pool.close()


async def test_decode() -> None:
    pool = TokenizerPool(TextTokenizer(byte_level()))
    ids = pool.tokenizer.encode("<s>fox")
    assert await pool.decode(ids) == "fox"
    assert await pool.decode(ids, show_special_tokens=True) == "<s>fox"
    pool.close()
