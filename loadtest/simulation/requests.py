"""From a workload's sessions to requests as the server's scheduler gets them, and what their clients do with the answers."""

from __future__ import annotations

from array import array

import numpy as np

from engines.contract import SequenceSpec
from engines.sampling.params import SamplingParams
from loadtest.prompts import PromptMaker, TokenSpace
from loadtest.record import RequestRecord, Usage
from loadtest.sessions import Session
from loadtest.simulation.profile import VOCABULARY
from loadtest.workload import Workload
from server.engine import GenerationRequest, PriorityClass

END_ID = VOCABULARY - 1
_FIRST_WORD = 2
"""Ids below and the end id never stand in a prompt."""


class Client:
    """One session in progress: which turn it is at, and all that was said so far."""

    __slots__ = ("context", "session", "turn")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.turn = 0
        self.context: tuple[int, ...] = ()
        """Prompt of the turn at hand; earlier turns and answers included."""


class RequestMaker:
    """Makes requests and remembers how long each answer will be, for the engine to say it. Deterministic."""

    def __init__(self, workload: Workload, *, max_context: int, max_tokens: int | None) -> None:
        """``max_tokens``: what every client asks for, whatever the answer's length; None = exactly that."""
        self._workload = workload
        self._prompts = PromptMaker(TokenSpace(np.arange(_FIRST_WORD, END_ID, dtype=np.int32)), workload.seed)
        self._max_context = max_context
        self._max_tokens = max_tokens
        self._lengths: dict[int, int] = {}
        self._made = 0

    def length_of(self, spec: SequenceSpec) -> int:
        """For the engine: tokens of the answer, end included. The sampling seed tells whose it is."""
        return self._lengths[spec.sampling.seed]

    def forget(self, request: int) -> None:
        """The request is over."""
        self._lengths.pop(request, None)

    def begin(self, client: Client) -> None:
        """Give the client the prompt of its turn; a later turn's builds on its context."""
        session, turn = client.session, client.turn
        fresh = self._prompts.first(session) if turn == 0 else self._prompts.later(session, turn)
        client.context = (*client.context, *fresh.tolist())

    def request(self, client: Client, at: float) -> GenerationRequest:
        """What the client sends at ``at``: cut to the model's context, as a client would that knows it."""
        session, turn, behaviour = client.session, client.session.turns[client.turn], self._workload.behaviour
        prompt = client.context[-(self._max_context - 1) :]
        room = self._max_context - len(prompt)
        length = min(room, turn.output_tokens)
        self._made += 1
        self._lengths[self._made] = length
        return GenerationRequest(
            id=self._made,
            prompt=prompt,
            max_tokens=length if self._max_tokens is None else min(room, max(length, self._max_tokens)),
            sampling=SamplingParams(seed=self._made),
            end_ids=(END_ID,),
            stop_ids=(),
            priority=PriorityClass[session.priority.upper()],
            tenant=session.tenant,
            cache_salt=session.tenant.encode(),
            arrival=at,
            deadline=None if behaviour.deadline is None else at + behaviour.deadline,
            ttft_deadline=None if behaviour.ttft_deadline is None else at + behaviour.ttft_deadline,
        )

    def record(self, client: Client, request: GenerationRequest) -> RequestRecord:
        """The record of a request that is being sent."""
        session, at = client.session, request.arrival
        return RequestRecord(
            session=session.index,
            turn=client.turn,
            due=at,
            sent=at,
            end=at,
            status="",
            detail="",
            priority=session.priority,
            tenant=session.tenant,
            prompt_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            usage=Usage(),
            stalled=session.turns[client.turn].stalls,
            warmup=at < self._workload.warmup,
            times=array("d"),
            tokens=array("i"),
        )
