"""From a workload to what each client does: sessions of one or more turns, each decided by (seed, index) alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from loadtest.distributions import Distribution, choice
from loadtest.errors import WorkloadError
from loadtest.randomness import generator
from loadtest.traces import Trace, TraceRow
from loadtest.workload import Workload


class Turn(msgspec.Struct, frozen=True):
    fresh_tokens: int
    """Prompt tokens that nobody sent before."""
    output_tokens: int
    think: float
    """Seconds after the previous answer's end."""
    cancel_after: float | None
    stalls: bool


class FilePrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a prompt file. Exactly one of ``text`` and ``token_ids`` is given."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None


class Session(msgspec.Struct, frozen=True):
    """One client: ``at`` is when it comes, in seconds from the start (0 in closed loop)."""

    index: int
    at: float
    turns: tuple[Turn, ...]
    priority: str
    tenant: str
    prefix_group: int = 0
    prefix_tokens: int = 0
    blocks: tuple[int, ...] = ()
    block_size: int = 0
    given: FilePrompt | None = None

    def longest(self) -> int:
        """Prompt and output tokens of the last turn: what must fit the model's context."""
        body = sum(turn.fresh_tokens + turn.output_tokens for turn in self.turns)
        return self.prefix_tokens + body


class SessionMaker:
    """Makes a workload's sessions. Reads its files once; raises what reading them raises."""

    def __init__(self, workload: Workload) -> None:
        workload.check()
        self.workload = workload
        self.trace: Trace | None = workload.read_trace()
        self._given = read_prompts(Path(workload.prompts)) if workload.prompts else []
        self._classes, self._class_names = _weighted(workload.classes, "--classes")
        self._tenants, self._tenant_names = _weighted(workload.tenants or {"": 1.0}, "--tenants")

    def sessions(self) -> Iterator[Session]:
        """Every session of the run, in the order of their times."""
        workload = self.workload
        for index, at in enumerate(self._times()):
            if workload.requests is not None and index >= workload.requests:
                return
            if workload.duration is not None and at >= workload.duration:
                return
            yield self.session(index, at)

    def session(self, index: int, at: float) -> Session:
        """The session of that index. Deterministic."""
        workload = self.workload
        rng = generator(workload.seed, "session", index)
        priority = self._class_names[int(self._classes.draw(rng))]
        tenant = self._tenant_names[int(self._tenants.draw(rng))]
        if self.trace is not None:
            return self._from_trace(index, at, rng, priority, tenant)
        turns = tuple(self._turn(rng, first=turn == 0) for turn in range(workload.turns.count.draw_count(rng)))
        given = self._given[int(rng.integers(len(self._given)))] if self._given else None
        if given is not None:
            turns = tuple(_as_given(turn, given) if number == 0 else turn for number, turn in enumerate(turns))
        return Session(
            index,
            at,
            turns,
            priority,
            tenant,
            prefix_group=int(rng.integers(workload.prefix.groups)),
            prefix_tokens=workload.prefix.tokens if given is None else 0,
            given=given,
        )

    def _from_trace(self, index: int, at: float, rng: np.random.Generator, priority: str, tenant: str) -> Session:
        if self.trace is None:
            raise WorkloadError("no trace")
        row: TraceRow = self.trace.rows[index % len(self.trace.rows)]
        turn = self._turn(rng, first=True, prompt=row.prompt_tokens, output=row.output_tokens)
        return Session(
            index,
            at,
            (turn,),
            row.priority or priority,
            row.tenant or tenant,
            blocks=row.blocks,
            block_size=self.trace.block_size,
        )

    def _turn(
        self, rng: np.random.Generator, *, first: bool, prompt: int | None = None, output: int | None = None
    ) -> Turn:
        workload, behaviour = self.workload, self.workload.behaviour
        # Every draw is made whatever is asked for, so that one option changes nothing but itself.
        drawn = workload.lengths.prompt.draw_count(rng), workload.lengths.output.draw_count(rng)
        think = max(0.0, workload.turns.think.draw(rng))
        cancels, stalls = (float(share) for share in rng.random(2))
        after = max(0.0, behaviour.cancel_after.draw(rng))
        return Turn(
            fresh_tokens=drawn[0] if prompt is None else prompt,
            output_tokens=drawn[1] if output is None else output,
            think=0.0 if first else think,
            cancel_after=after if cancels < behaviour.cancel_rate else None,
            stalls=stalls < behaviour.stall_rate,
        )

    def _times(self) -> Iterator[float]:
        if self.workload.arrivals is not None:
            return self.workload.arrivals.times(self.workload.seed)
        if self.workload.concurrency is not None:
            return itertools.repeat(0.0)
        if self.trace is None:
            raise WorkloadError("neither arrivals, nor a concurrency, nor a trace")
        return iter([row.at for row in self.trace.rows])

    def check_fits(self, max_context: int, limit: int = 100_000) -> None:
        """Raise WorkloadError where a session cannot fit the model's context, with the remedy. Looks at ``limit`` sessions."""
        if self.workload.concurrency is not None and self.workload.requests is None:
            limit = min(limit, 10_000)
        worst = max((each.longest() for each in itertools.islice(self.sessions(), limit)), default=0)
        if worst > max_context:
            raise WorkloadError(
                f"the longest session needs {worst} tokens; the server's context holds {max_context}: use shorter "
                f"lengths, or --scale-lengths {math.floor(max_context / worst * 1000) / 1000:g} with a trace"
            )


def read_prompts(path: Path) -> list[FilePrompt]:
    """A JSON-lines file of prompts. Raises WorkloadError naming the line."""
    prompts: list[FilePrompt] = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip():
                continue
            prompt = msgspec.json.decode(line, type=FilePrompt)
            if bool(prompt.text) == bool(prompt.token_ids):
                raise WorkloadError(f"--prompts: {path}, line {number}: give one of text and token_ids")
            prompts.append(prompt)
    except OSError as error:
        raise WorkloadError(f"--prompts: cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WorkloadError(f"--prompts: {path}: {error}") from error
    if not prompts:
        raise WorkloadError(f"--prompts: {path} holds no prompt")
    return prompts


def _as_given(turn: Turn, given: FilePrompt) -> Turn:
    return msgspec.structs.replace(
        turn, fresh_tokens=len(given.token_ids), output_tokens=given.max_tokens or turn.output_tokens
    )


def _weighted(weights: dict[str, float], option: str) -> tuple[Distribution, list[str]]:
    return choice({float(number): weight for number, weight in enumerate(weights.values())}, option), list(weights)
