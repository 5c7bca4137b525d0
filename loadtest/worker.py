"""A client process: ``python -m loadtest.worker``, started by loadtest.run, which speaks to it over its standard streams.

Processes of their own, because a client that shares an interpreter with its own display, or runs at the limit of one core,
measures itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from loadtest.channel import Done, Failed, FromWorker, Job, Ready, Start, ToWorker, Update, pack, read_body
from loadtest.client_health import HealthMonitor
from loadtest.driver import Driver
from loadtest.errors import LoadError
from loadtest.prompts import PromptMaker, TokenSpace, id_space, word_space
from loadtest.record import RequestRecord, to_wire
from loadtest.sessions import SessionMaker
from loadtest.transports.base import LoadSample, Target, TargetFacts, Transport
from loadtest.transports.choose import make_transport

UPDATE_SECONDS = 0.5
GUESSED_VOCABULARY = 32_000
"""For wires that take ids and do not tell the vocabulary: smaller than that of any model served today."""


class Worker:
    """One process's life: job, connect, ready, start, updates, done."""

    def __init__(self, job: Job, output: BinaryIO) -> None:
        self._job = job
        self._output = output
        self._records: list[RequestRecord] = []
        self._monitor = HealthMonitor()

    async def run(self, commands: asyncio.StreamReader) -> None:
        """Raises LoadError."""
        transport = make_transport(self._job.target)
        try:
            facts = await transport.open()
            driver = self._driver(transport, facts)
            self._send(Ready(facts))
            body = await read_body(commands)
            if body is None:
                return
            start = msgspec.msgpack.decode(body, type=ToWorker)
            if isinstance(start, Start):
                await self._drive(driver, transport, start.at, commands)
        finally:
            await transport.close()

    def _driver(self, transport: Transport, facts: TargetFacts) -> Driver:
        job = self._job
        maker = SessionMaker(job.workload)
        if facts.max_context is not None:
            maker.check_fits(facts.max_context)
        as_text = job.target.send_text or not transport.takes_ids
        space = token_space(job.target, facts, as_text=as_text)
        prompts = PromptMaker(space, job.workload.seed)
        return Driver(
            transport, maker, prompts, self._records.append, share=job.share, shares=job.shares, send_text=as_text
        )

    async def _drive(self, driver: Driver, transport: Transport, start: float, commands: asyncio.StreamReader) -> None:
        # Collections of the young are cheap; a full one over all records would stop the loop amid a stream.
        gc.collect()
        gc.freeze()
        watch = asyncio.ensure_future(self._monitor.watch())
        updates = asyncio.ensure_future(self._report(driver, transport, start))
        run = asyncio.ensure_future(driver.run(start))
        stopped = asyncio.ensure_future(read_body(commands))
        await asyncio.wait({run, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (watch, updates, stopped):
            task.cancel()
        if run.done():
            run.result()
        else:
            run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        self._send(self._update(driver, start, None))
        self._send(Done(self._monitor.health(driver.progress.all_messages)))

    async def _report(self, driver: Driver, transport: Transport, start: float) -> None:
        warm_until = start + self._job.workload.warmup
        warming = warm_until > start
        while True:
            await asyncio.sleep(UPDATE_SECONDS)
            if warming and time.monotonic() >= warm_until:
                warming = False
                self._monitor.restart()
            load = await transport.load() if self._job.share == 0 else None
            self._send(self._update(driver, start, load))

    def _update(self, driver: Driver, start: float, load: LoadSample | None) -> Update:
        wires = [to_wire(record) for record in self._records]
        self._records.clear()
        return Update(time.monotonic() - start, driver.progress.drain(), wires, load)

    def _send(self, message: FromWorker) -> None:
        send(self._output, message)


def send(output: BinaryIO, message: FromWorker) -> None:
    output.write(pack(message))
    output.flush()


def token_space(target: Target, facts: TargetFacts, *, as_text: bool) -> TokenSpace:
    """What prompts are made of for this server. Raises WorkloadError where it needs a tokenizer and none is given."""
    if target.tokenizer is not None:
        return word_space(Path(target.tokenizer))
    space = id_space(facts.vocab_size or GUESSED_VOCABULARY)
    if as_text:
        space.text(space.ids[:1])
    return space


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=2**26)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


async def work(output: BinaryIO) -> int:
    commands = await _standard_input()
    body = await read_body(commands)
    job = msgspec.msgpack.decode(body, type=ToWorker) if body is not None else None
    if not isinstance(job, Job):
        return 1
    try:
        await Worker(job, output).run(commands)
    except LoadError as error:
        send(output, Failed(type(error).__name__, str(error)))
        return 1
    return 0


def main() -> int:
    # Whatever a library prints must not run into the messages.
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        return asyncio.run(work(output))
    return 1  # whoever asked is gone


if __name__ == "__main__":
    sys.exit(main())
