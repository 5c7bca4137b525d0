"""How faithful a server is: how often its likeliest token is the float32 reference's, along the reference's own output."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from build_scripts.golden.reference import Golden
from loadtest.prompts import Ids
from loadtest.race.environment import RaceError
from loadtest.record import Usage
from loadtest.transports.base import Ask, Target
from loadtest.transports.choose import make_transport

AT_ONCE = 4
EVERY = 1
"""Positions that are asked: each, or only every n-th where time is short."""


class Answer:
    """The first token of one answer, as the wire gives it: an id or its text."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_content(self, _tokens: int, _now: float, *, ids: list[int] | None = None, text: str = "") -> None:
        self.ids += ids or []
        self.text += text

    def on_usage(self, usage: Usage) -> None: ...

    def on_over(self, status: str, detail: str, _now: float) -> None:
        self.over.set_result("" if status == "OK" else f"{status} {detail}")


def agreement(target: Target, golden: Golden, tokenizer: Path, every: int = EVERY) -> float:
    """Share of the golden positions at which the server's greedy token is the reference's. Raises LoadError."""
    return asyncio.run(_agreement(target, golden, tokenizer, every))


async def _agreement(target: Target, golden: Golden, tokenizer: Path, every: int) -> float:
    from tokenizers import Tokenizer

    decoder = Tokenizer.from_file(str(tokenizer))
    transport = make_transport(target)
    await transport.open()
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(prefix: list[int], expected: int) -> bool:
        request = Ask(_ids(prefix), None, 1, "interactive", "", None, None, False, False)
        async with gate:
            answer = Answer()
            await transport.start(request, transport.encode(request), answer)
            if failure := await answer.over:
                raise RaceError(f"fidelity: {failure}")
        if answer.ids or not answer.text:
            # A server that ends at an end-of-sequence token sends nothing for it.
            return answer.ids == [expected] or (not answer.ids and _is_special(decoder.id_to_token(expected)))
        return answer.text == decoder.decode([expected], skip_special_tokens=False)

    positions = [
        (sequence.whole[: place + 1], expected)
        for sequence in golden.sequences
        for place, expected in enumerate(sequence.argmax)
    ][::every]
    try:
        agreed = await asyncio.gather(*(ask(prefix, expected) for prefix, expected in positions))
    finally:
        await transport.close()
    return sum(agreed) / len(agreed)


def _ids(prefix: list[int]) -> Ids:
    return np.array(prefix, np.int32)


def _is_special(piece: str | None) -> bool:
    return piece is not None and piece.startswith("<") and piece.endswith(">")
