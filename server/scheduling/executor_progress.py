"""How far a request executor has come, as far as its answers tell: the work ahead inside it, and what its iterations cost.

An executor says neither. But each iteration gives a token to everyone who streams, and prompts share what is left of its tokens
in their order; so the time between two answers, and what must have been computed meanwhile, teach the same cost model that a step
runner's measured steps do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from engines.contract import ExecutorLimits, ExecutorResponse
from server.kv.block_pool import IntegrityError
from server.scheduling.config import BatcherConfig
from server.scheduling.cost import StepCost
from server.scheduling.executor_mirror import ExecutorMirror
from server.scheduling.forecast import Forecast, House
from server.scheduling.outlook import Outlook, Prefilling
from server.scheduling.reception import Reception
from server.scheduling.tenants import W
from server.scheduling.waiting_room import WaitingRoom


@dataclass(slots=True)
class _Inside:
    """One request that was handed over and is not over."""

    sequences: int
    prompt: int
    output: int
    """Tokens that each sequence will probably draw."""
    began: float = inf
    """When it got its seat; until then it waits inside, and no iteration computes it."""
    computed: int = 0
    """Prompt tokens believed computed; all of them once it has answered."""
    answered: bool = False
    context: int = 0
    """Tokens that its sequences attend to, all together, once it has answered."""


class ExecutorProgress:
    """Follows the requests inside. Engine thread only, but for ``forecast``, which predicts on any thread."""

    def __init__(
        self, limits: ExecutorLimits, config: BatcherConfig, cost: StepCost, reception: Reception, house: House
    ) -> None:
        self._limits = limits
        self._cost = cost
        # It fills its iterations up, whatever our own steps would do.
        filled = replace(
            config, budget="fixed", step_tokens=limits.max_num_tokens, min_prefill_tokens=1, max_partial_prefills=1
        )
        self.forecast = Forecast(filled, cost, reception, house)
        self._inside: dict[int, _Inside] = {}
        """In the order in which they went in."""
        self._last = 0.0
        """When the iteration under way began."""

    def enter(self, request: int, prompt: int, output: int, sequences: int, now: float) -> None:
        """It was handed over."""
        if not self._inside:
            self._last = now
        self._inside[request] = _Inside(sequences, prompt, output)

    def begin(self, requests: Iterable[int], now: float) -> None:
        """These have seats and blocks now, as far as we know: the next iteration computes them."""
        for request in requests:
            self._inside[request].began = now

    def leave(self, request: int) -> None:
        """It is over."""
        del self._inside[request]

    def answers(self, responses: Sequence[ExecutorResponse], now: float) -> None:
        """Something came: learn from what it took. To be told before anybody leaves for it."""
        tokens: Counter[int] = Counter()
        iterations = 0
        for response in responses:
            if response.tokens and response.request in self._inside:
                tokens[response.request] += len(response.tokens)
                iterations = max(iterations, len(response.tokens))
        if not iterations:
            return
        self._observe(tokens, iterations, now - self._last)
        self._last = now
        for request, count in tokens.items():
            one = self._inside[request]
            if not one.answered:
                one.answered, one.computed, one.context = True, one.prompt, one.prompt * one.sequences
            one.context += count

    def _observe(self, tokens: Counter[int], iterations: int, seconds: float) -> None:
        """``iterations`` together took so long, in which these requests got so many tokens."""
        streaming = [one for request in tokens if (one := self._inside[request]).answered]
        decodes, context = sum(one.sequences for one in streaming), sum(one.context for one in streaming)
        left = iterations * max(1, self._limits.max_num_tokens - decodes)
        new, attention = 0, 0.0
        for request, one in self._inside.items():
            rest = one.prompt - one.computed
            if request in tokens:  # it is through, whatever was believed
                size = rest
            elif one.began == inf or (
                one.began > self._last and iterations == 1
            ):  # it waits; or joins the next iteration
                continue
            else:  # it lacks a token at least, or it would have answered
                size = min(left, rest - 1)
            if size > 0:
                new += size
                attention += size * (one.computed + size / 2)
                one.computed += size
                left -= size
        self._cost.observe(new // iterations, decodes, context, attention / iterations, seconds / iterations)

    def outlook(self, room: WaitingRoom[W], mirror: ExecutorMirror) -> Outlook:
        """What lies ahead of whoever comes now. O(requests inside)."""
        inside = self._inside.values()
        ahead = sum(one.prompt - one.computed for one in inside)
        decodes = sum(one.sequences for one in inside if one.answered)
        context = sum(one.context for one in inside)
        chunk = max(0, min(ahead, self._limits.max_num_tokens - decodes))
        under_way = self._cost.seconds(chunk, decodes, context, chunk * chunk / 2) if inside else 0.0
        interactive, standard, batch = room.by_class
        return Outlook(
            # Who waits inside goes before all who wait outside.
            waiting_requests=(interactive + mirror.waiting_inside, standard, batch),
            prefilling_tokens=ahead,
            prefilling=tuple(
                Prefilling(
                    # Who has a seat goes on before who waits for one.
                    level=-2 if one.began < inf else -1,
                    rank=0.0,
                    tokens=one.prompt - one.computed,
                    past=one.computed,
                    blocks=mirror.blocks(request),
                    output=one.output,
                    seated=one.began < inf,
                    seats=one.sequences,
                )
                for request, one in self._inside.items()
                if one.computed < one.prompt
            ),
            decodes=decodes,
            context=context,
            step_seconds=under_way,
            step_ends=self._last + under_way,
            free_seats=self._limits.max_batch_size - mirror.seats,
            free_blocks=self._limits.block_count - mirror.reserved,
        )

    def check_integrity(self, inside: set[int]) -> None:
        """``inside``: everyone handed over and not ended."""
        if self._inside.keys() != inside:
            raise IntegrityError(f"inside are {sorted(inside)}, followed {sorted(self._inside)}")
        if any(not 0 <= one.computed <= one.prompt for one in self._inside.values()):
            raise IntegrityError(f"more of a prompt was computed than it has: {self._inside}")
