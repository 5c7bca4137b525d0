"""Everything that goes wrong, at once, against one server process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firsttoken.client import (
    AccessError,
    AsyncClient,
    CallError,
    ConflictError,
    DeadlineError,
    GenerateOptions,
    OverloadedError,
    UnavailableError,
)
from protos.firsttoken.v1 import generation_pb2 as pb
from tests.chaos.laws import Tally, Trouble, check_restored
from tests.chaos.process import STALL, TOKEN, Server, end
from tests.rpc.raw_http2 import GENERATE, call, greeting

PROMPTS = tuple(f"Question {number}: " + "why is that so? " * number for number in range(1, 9))
DRAIN_STREAMS = 32
END = 90.0
"""Seconds that an end may take on a machine that does much else."""
PATIENCE = 600.0
"""Seconds that whoever sets no deadline waits. (Where nothing is said the client library sets one: what the server publishes, three times its
95th percentile, which passes where the whole machine stands still for a while.)"""
FIRST_ID, IDS = 20, 230
"""Tokens of ordinary text in every engine's vocabulary."""
VICTIM = """
import sys
from firsttoken.client import Client, Tls
with Client(sys.argv[1], tls=Tls.from_files(sys.argv[2]), token=sys.argv[3]) as client:
    for _ in client.generate("a client that is going to be killed", max_tokens=4000):
        print("streaming", flush=True)
"""


@dataclass(frozen=True)
class Weather:
    """How much goes on. Pauses in seconds."""

    clients: int = 24
    tokens: int = 64
    victims: float = 2.0
    swaps: float = 2.0
    faults: float = 1.0
    rotations: float = 1.5


STORM, BREEZE = Weather(), Weather(clients=5, victims=8.0, swaps=4.0, faults=2.0, rotations=3.0)
"""BREEZE is for machines that have other work: everything happens, less often."""


class Storm:
    """Load and trouble for one server. ``truth``: each prompt's one right answer; empty where the engine promises none."""

    def __init__(
        self, server: Server, tally: Tally, rng: random.Random, weather: Weather, engines: tuple[str, ...]
    ) -> None:
        """``engines`` are swapped in turn."""
        self.server = server
        self.tally = tally
        self.truth: dict[str, str] = {}
        self._rng = rng
        self._weather = weather
        self._engines = engines
        self._turn = 0
        self._stop = asyncio.Event()

    async def learn(self) -> None:
        """What each prompt's answer is, while nothing disturbs."""
        async with self.server.client() as client:
            for prompt in PROMPTS:
                self.truth[prompt] = await client.generate(prompt, max_tokens=self._weather.tokens).text()

    async def fill(self, prompts: int, tokens: int) -> None:
        """Have so many prompts of so many tokens computed: the pool's memory is committed when it is first written."""
        async with self.server.client() as client:
            for prompt in range(prompts):
                ids = [FIRST_ID + (37 * place + prompt) % IDS for place in range(tokens)]
                await client.generate(ids, max_tokens=1).text()

    async def round(self, seconds: float) -> None:
        """Everything at once; returns when the last of it is over."""
        async with self._blowing():
            await asyncio.sleep(seconds)

    async def drain(self) -> None:
        """SIGTERM under load: streams that run end well, new ones get UNAVAILABLE, a client that reads nothing holds nobody up, exit 0."""
        async with self.server.client() as client, self._stalled_reader():
            calls = [
                asyncio.ensure_future(self._judged(client, PROMPTS[at % len(PROMPTS)], None))
                for at in range(DRAIN_STREAMS)
            ]
            await asyncio.sleep(0.3)
            self.server.running.send_signal(signal.SIGTERM)
            with self._trouble():  # those that had not yet been let in
                await asyncio.gather(*calls)
                status = await asyncio.wait_for(self.server.running.wait(), END)
        if status:
            self.tally.broken.append(f"exit status {status} after SIGTERM")

    async def hang(self) -> None:
        """A step that never ends, under load: not ready, streams end UNAVAILABLE, the stacks in the log, exit 1; then a new process, which finds a
        saved cache that the disk has damaged."""
        async with self._blowing(faults=False), self._trouble_in():
            await asyncio.sleep(1.0)
            await self.server.control("hang")
            status = await asyncio.wait_for(self.server.running.wait(), END)
            self.tally.count("hung", wrong=status != 1 and f"exit status {status} after a hung step")
            log = self.server.log()
            for words in ("the engine is stuck", "thread stack", '"engine:', "post-mortem written"):
                if words not in log:
                    self.tally.broken.append(f"a hung step left no {words!r} in the log")
            await asyncio.to_thread(_damage, self.server.saved_cache)
            await self.server.start()
            await check_restored(self.server, self.tally, "corrupt")

    async def kill(self) -> None:
        """SIGKILL under load; then a new process, which has the cache that was saved last."""
        async with self._blowing(faults=False), self._trouble_in():
            await asyncio.sleep(1.0)
            await self.server.kill()
            self.tally.count("server killed")
            await self.server.start()
            await check_restored(self.server, self.tally, "restored")

    # ------------------------------------------------------------------ scopes

    @contextlib.asynccontextmanager
    async def _blowing(self, *, faults: bool = True) -> AsyncIterator[None]:
        self._stop = asyncio.Event()
        work: list[Coroutine[Any, Any, None]] = [self._requests() for _ in range(self._weather.clients)]
        work += [self._rude(), self._stalled(), self._killed(), self._strangers(), self._rotations()]
        if faults:
            work += [self._swaps(), self._failures(), self._full_disks()]
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            yield
        finally:
            self._stop.set()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, BaseException):
                    self.tally.broken.append(f"unexpected: {result!r}")

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        """Requests may fail that run meanwhile."""
        trouble = Trouble(time.monotonic())
        self.tally.troubles.append(trouble)
        try:
            yield
        finally:
            trouble.ended = time.monotonic()

    @contextlib.asynccontextmanager
    async def _trouble_in(self) -> AsyncIterator[None]:
        with self._trouble():
            yield

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    # ------------------------------------------------------------------ those who ask

    async def _requests(self) -> None:
        async with self.server.client() as client:
            while not self._stop.is_set():
                prompt, kind = self._rng.choice(PROMPTS), self._rng.random()
                if kind < 0.25:
                    await self._cancelled(client, prompt)
                else:
                    await self._judged(client, prompt, self._rng.uniform(0.01, 0.3) if kind < 0.45 else None)

    async def _judged(self, client: AsyncClient, prompt: str, seconds: float | None) -> None:
        """One request to its end, and whether that end fits."""
        began, nobody = time.monotonic(), seconds is None and "that nobody asked for"
        try:
            limits: GenerateOptions = {"max_tokens": self._weather.tokens, "timeout": seconds or PATIENCE}
            text = await client.generate(prompt, **limits).text()
        except DeadlineError:
            self.tally.count("deadline", wrong=nobody and f"a deadline {nobody}")
        except OverloadedError as error:
            self.tally.count("refused for time", wrong=nobody and f"a refusal {nobody}: {error}")
        except UnavailableError as error:
            self.tally.count(
                "unavailable", wrong=not self.tally.troubled(began) and f"unavailable for nothing: {error}"
            )
            await self._pause(0.2)
        except CallError as error:
            spent = time.monotonic() - began
            self.tally.count("error", wrong=f"{error.status} after {spent:.3f} s, deadline {seconds}: {error}")
        else:
            right = self.truth.get(prompt, text)
            self.tally.count("ok", wrong=text != right and f"another answer: {text[:40]!r}")

    async def _cancelled(self, client: AsyncClient, prompt: str) -> None:
        # A prompt of its own, so that there is always something new to cache.
        stream = client.generate(f"{self._rng.random()} {prompt}", max_tokens=self._weather.tokens, timeout=PATIENCE)
        began = time.monotonic()
        try:
            async for delta in stream:
                if delta.text and self._rng.random() < 0.2:
                    break
        except UnavailableError as error:
            self.tally.count(
                "unavailable", wrong=not self.tally.troubled(began) and f"unavailable for nothing: {error}"
            )
            await self._pause(0.2)
        else:
            self.tally.count("cancelled")
        finally:
            stream.close()

    # ------------------------------------------------------------------ those who misbehave

    async def _rude(self) -> None:
        """Connections that say nothing, half a greeting, or HTTP/1."""
        while not self._stop.is_set():
            for opening in (b"", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n\r\n"):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.server.grpc_port)
                    writer.write(opening)
                    await self._pause(0.2)
                    writer.close()
                await self._pause(0.05)
            self.tally.count("rude")

    async def _stalled(self) -> None:
        """Calls whose client lets not one byte of the answer through: short ones, which end, and long ones, which are cut off."""
        while not self._stop.is_set():
            async with self._stalled_reader():
                await self._pause(self._rng.uniform(0.5, STALL + 2))
            self.tally.count("stalled")

    @contextlib.asynccontextmanager
    async def _stalled_reader(self) -> AsyncIterator[None]:
        writer = None
        with contextlib.suppress(OSError):  # the server is down
            _, writer = await self.server.connect()
            metadata = ((b"authorization", f"Bearer {TOKEN}".encode()),)
            writer.write(greeting(window=0))
            for place, tokens in enumerate((4, 4000)):
                asked = pb.GenerateRequest(prompt=pb.Prompt(text="to nobody"), max_tokens=tokens)
                writer.write(call(GENERATE, asked.SerializeToString(), stream=2 * place + 1, metadata=metadata))
        try:
            yield
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _killed(self) -> None:
        """Client processes that get SIGKILL while they stream."""
        while not self._stop.is_set():
            arguments = (self.server.address, str(self.server.authority), TOKEN)
            quiet = asyncio.subprocess.DEVNULL
            victim = await asyncio.create_subprocess_exec(
                sys.executable, "-c", VICTIM, *arguments, stdout=asyncio.subprocess.PIPE, stderr=quiet
            )
            if victim.stdout is not None:
                await victim.stdout.readline()
            end(victim)
            await victim.wait()
            self.tally.count("killed")
            await self._pause(self._weather.victims)

    async def _strangers(self) -> None:
        while not self._stop.is_set():
            async with self.server.client("wrong") as client:
                began = time.monotonic()
                try:
                    await client.generate("x", max_tokens=1).text()
                except AccessError:
                    self.tally.count("refused")
                except UnavailableError as error:
                    wrong = not self.tally.troubled(began) and f"a stranger: {error}"
                    self.tally.count("unavailable", wrong=wrong)
                else:
                    self.tally.count("refused", wrong="a wrong token got in")
            await self._pause(0.3)

    # ------------------------------------------------------------------ what operators and bad luck do

    async def _rotations(self) -> None:
        while not self._stop.is_set():
            await asyncio.to_thread(self.server.rotate)
            self.tally.count("rotated")
            await self._pause(self._weather.rotations)

    async def _swaps(self) -> None:
        """Good engines in turn, each sixth in the old one's place, and now and then one that cannot be loaded, which must change nothing."""
        async with self.server.client() as client:
            while not self._stop.is_set():
                self._turn += 1
                good, replace = self._turn % 4 != 0, self._turn % 6 == 5
                engine = self._engines[self._turn % len(self._engines)] if good else "simulated:no"
                with self._trouble() if replace else contextlib.nullcontext():
                    await self._swap(client, engine, good=good, replace=replace)
                await self._pause(self._weather.swaps)

    async def _swap(self, client: AsyncClient, engine: str, *, good: bool, replace: bool) -> None:
        began = time.monotonic()
        try:
            await client.load_engine(engine, replace=replace)
        except ConflictError as error:
            wrong = good and not self.tally.troubled(began) and f"a swap was refused: {error}"
            self.tally.count("swap refused", wrong=wrong)
        else:
            outcome = "replaced" if replace else "swapped"
            self.tally.count(outcome, wrong=not good and "an engine that does not exist was installed")

    async def _full_disks(self) -> None:
        """The disk that the cache is saved to is full, and then it is not."""
        while not self._stop.is_set():
            await self.server.control("fill")
            await self._pause(self._weather.faults)
            await self.server.control("free")
            self.tally.count("disk full")
            await self._pause(self._weather.faults)

    async def _failures(self) -> None:
        """The engine's library fails a step: who was in it gets UNAVAILABLE, and nobody else."""
        while not self._stop.is_set():
            await self._pause(self._weather.faults)
            with self._trouble():
                await self.server.control("fail")
            self.tally.count("steps failed")


def _damage(path: Path) -> None:
    """One byte in the middle of the file is another."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
