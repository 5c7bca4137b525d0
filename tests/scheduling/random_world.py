"""One random world: its size, its requests, what happens to them, and the judgement of it all."""

from __future__ import annotations

import contextlib
import random
from array import array
from typing import Any

import msgspec
import numpy as np

from engines.contract import Retention
from engines.simulated.draws import TokenDrawer
from engines.simulated.history import History
from server.cache_tasks import (
    CachedPrefix,
    CacheTask,
    ClearCache,
    ListPrefixes,
    PinPrefix,
    PinPrompt,
    UnpinPrefix,
)
from server.engine import FinishReason, GenerationRequest, PriorityClass
from server.errors import ServerError
from server.scheduling.config import BatcherConfig
from tests.scheduling.world import BLOCK, LANGUAGE, World, alone, make_request, natural_end

NATURAL = frozenset({FinishReason.END, FinishReason.STOP_TOKEN, FinishReason.LENGTH})
"""Ends that the tokens alone decide."""


class Operator:
    """Pins, unpins, lists and clears amid the traffic of every third world. Draws apart, so that the traffic does not depend on it."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(seed)  # noqa: S311 - as above
        self._busy = seed % 3 == 0
        self._names: list[bytes] = []

    def tend(self, requests: list[GenerationRequest]) -> None:
        rng, prefixes, now = self._rng, self._world.batcher.prefixes, self._world.now
        if not self._busy or not requests or rng.random() < 0.8:
            return
        asked = rng.choice(requests)
        task: CacheTask = rng.choice(
            (
                PinPrompt(asked.prompt, asked.cache_salt, rng.uniform(0.1, 20)),
                PinPrompt(asked.prompt, asked.cache_salt, rng.uniform(0.1, 20)),
                PinPrefix(rng.choice(self._names or [b""]), 5.0),
                UnpinPrefix(rng.choice(self._names or [b""])),
                ListPrefixes(5),
                ClearCache(pins=rng.random() < 0.3),
            )
        )
        with contextlib.suppress(ServerError):
            answer = prefixes.perform(task, now)
            if isinstance(answer, CachedPrefix):
                self._names.append(answer.name)
        self._world.batcher.check_integrity()

    def with_wishes(self, request: GenerationRequest) -> GenerationRequest:
        """Who the operator is busy for says now and then which of its blocks are worth keeping."""
        rng, length = self._rng, len(request.prompt)
        if not self._busy or rng.random() < 0.5:
            return request
        split = rng.randint(1, length)
        stretches = [Retention(0, split, rng.randint(0, 100), rng.choice((None, 0.5, 20.0)))]
        if split < length:
            stretches.append(Retention(split, None, rng.randint(0, 100)))
        return msgspec.structs.replace(request, retention=tuple(stretches))

    def leave(self) -> None:
        self._world.batcher.prefixes.perform(ClearCache(pins=True), self._world.now)


class RandomWorld:
    """One seed's world: its size, its requests, and everything that happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 - a world must replay from its seed
        self.max_context = rng.choice((16, 24, 48))
        needed = -(-self.max_context // 4)
        sequences = rng.randint(1, 10)
        config = BatcherConfig(
            max_sequences=sequences,
            step_tokens=rng.choice((1, 3, 8, 16, 40)),
            min_prefill_tokens=rng.choice((1, 4)),
            max_partial_prefills=rng.randint(1, 4),
            long_prompt_tokens=rng.choice((0, 8, 1000)),
            min_copy_tokens=rng.choice((1, 2)),
            max_prefix_waits=rng.choice((0, 1, 4)),
            max_score_tokens=rng.choice((1, 3, 100)),
            watermark=rng.choice((0.0, 0.01, 0.2)),
            **self.policies(),
        )
        self.world = World(
            blocks=rng.choice((needed, needed + 1, needed * 2, needed * 6)),
            max_context=self.max_context,
            config=config,
            draft=rng.random() < 0.8,
        )
        self.stems = [[rng.randrange(3, 9) for _ in range(self.max_context)] for _ in range(3)]
        self.requests: dict[int, GenerationRequest] = {}
        self.wished: dict[int, FinishReason] = {}
        self.stopped: dict[tuple[int, int], int] = {}
        self.left = rng.randint(1, 25)
        self.hostile = rng.random() < 0.6
        self.operator = Operator(self.world, seed)

    def policies(self) -> dict[str, Any]:
        """Every policy of the configuration, on or off. Drawn apart, so that a world's traffic does not depend on them."""
        rng = random.Random(self.rng.random())  # noqa: S311 - as above
        return {
            "budget": rng.choice(("adaptive", "fixed")),
            "itl_target": rng.choice((0.001, 0.05, 10.0)),
            "itl_stretch": rng.choice((1.0, 2.0, 8.0)),
            "itl_limit": rng.choice((0.001, 0.2, 20.0)),
            "idle_step": rng.choice((0.001, 1.0)),
            "order": rng.choice(("aged", "arrival")),
            "length_weight": rng.choice((0.0, 2.0, 1000.0)),
            "length_quantile": rng.choice((0.1, 0.5, 0.9)),
            "target_per_token": rng.choice((0.0, 0.1)),
            "tenant_burst": rng.choice((0.0, 10.0, 4096.0)),
            "eviction": rng.choice(("reuse", "lru")),
            "standard_share": rng.choice((0.0, 0.2, 0.5)),
            "batch_share": rng.choice((0.0, 0.05, 0.4)),
            "fair_tenants": rng.random() < 0.7,
            "max_preemptions": rng.choice((0, 1, 3)),
            "preemptions_per_second": rng.choice((0.0, 1.0, 100.0)),
            "batch_size": rng.randint(1, 4),
            "batch_wait": rng.choice((0.0, 0.0, 2.5)),
            "prefix_cache": rng.random() < 0.9,
        }

    def make(self) -> GenerationRequest:
        rng = self.rng
        stem = rng.choice(self.stems)
        length = rng.randint(1, self.max_context - 1)
        kept = rng.randint(0, length)
        prompt = stem[:kept] + [rng.randrange(3, 9) for _ in range(length - kept)]
        max_tokens = rng.randint(0, self.max_context - length)
        deadline = self.world.now + rng.uniform(0, 30) if self.hostile and rng.random() < 0.2 else None
        ttft = self.world.now + rng.uniform(0, 15) if self.hostile and rng.random() < 0.2 else None
        request = make_request(
            len(self.requests),
            prompt,
            max_tokens,
            priority=rng.choice(list(PriorityClass)),
            tenant=rng.choice(("", "a", "b")),
            salt=rng.choice((b"", b"", b"other")),
            end_ids=rng.choice(((2,), ())),
            stop_ids=rng.choice(((), (7, 100))),
            arrival=self.world.now,
            deadline=deadline,
            ttft_deadline=ttft,
            n=rng.choice((1, 1, 2, 5)) if max_tokens else 1,
            temperature=rng.choice((0.0, 1.0)),
            # Whoever remembers its tokens must do so through preemptions.
            penalty=rng.choice((0.0, 0.0, 0.0, 1.5)),
            no_repeat_ngram=rng.choice((0, 0, 0, 2)),
            prompt_logprobs=rng.choice((None, None, None, 0, 2)),
        )
        request = self.operator.with_wishes(request)
        self.requests[request.id] = request
        return request

    def disturb(self) -> None:
        """Between two calls: arrivals, and wishes for any request that ever was."""
        rng = self.rng
        while self.left and rng.random() < 0.5:
            self.left -= 1
            self.world.add(self.make())
        if self.hostile and rng.random() < 0.01:
            self.world.runner.faults.fail_next_step()
        if self.requests and self.hostile and rng.random() < 0.15:
            victim = rng.choice(list(self.requests))
            if rng.random() < 0.5:
                self.wished.setdefault(victim, FinishReason.CANCELLED)
                self.world.batcher.cancel(victim, rng.choice((FinishReason.CANCELLED, FinishReason.OVERLOADED)))
            else:
                index = rng.randrange(self.requests[victim].n)
                said = self.world.outputs[victim, index]
                if said and (victim, index) not in self.stopped:
                    self.stopped[victim, index] = rng.randint(1, len(said))
                    self.world.batcher.stop(victim, index, self.stopped[victim, index])

    def run(self) -> None:
        world = self.world
        for _ in range(20_000):
            self.disturb()
            self.operator.tend(list(self.requests.values()))
            if world.start() is not None:
                self.disturb()
                world.finish()
            elif world.batcher.idle and not self.left:
                break
            else:
                assert world.batcher.idle, "requests live, but nothing runs"
        else:
            raise AssertionError("not over")
        self.judge()

    def judge(self) -> None:
        world = self.world
        self.operator.leave()
        assert world.ends.keys() == self.requests.keys()
        for request in self.requests.values():
            self.judge_one(request)
        stats = world.batcher.stats()
        assert (stats.running, stats.waiting_tokens, stats.blocks_in_use, stats.blocks_quarantined) == (0, 0, 0, 0)
        assert stats.blocks_free + stats.blocks_cached == world.runner.limits.block_count
        assert stats.discarded_tokens == sum(end.discarded_tokens for end in world.all_ends.values())
        assert stats.generated_tokens == sum(map(len, world.outputs.values()))

    def judge_one(self, request: GenerationRequest) -> None:
        world = self.world
        for index in range(request.n):
            self.judge_sequence(request, index)
        self.judge_scores(request)
        ends = [world.all_ends[request.id, at].reason for at in range(request.n) if (request.id, at) in world.all_ends]
        if all(end.is_success for end in ends) and len(ends) == request.n:
            assert world.reason(request.id).is_success
        else:
            assert not world.reason(request.id).is_success
        assert world.ends[request.id].cached_tokens < len(request.prompt)

    def judge_scores(self, request: GenerationRequest) -> None:
        scores, sequence = self.world.scores[request.id], array("i", request.prompt)
        if request.prompt_logprobs is None:
            assert not scores
            return
        if self.world.outputs[request.id, 0]:
            assert len(scores) == len(request.prompt) - 1
        states = np.array([History(BLOCK, sequence[:place]).state for place in scores], np.uint64)
        targets = [sequence[place] for place in scores]
        if scores:
            expected, _ = TokenDrawer(LANGUAGE).score(0, states, targets, 0)
            assert list(scores.values()) == expected

    def judge_sequence(self, request: GenerationRequest, index: int) -> None:
        world, key = self.world, (request.id, index)
        output, end = world.outputs[key], world.all_ends.get(key)
        # Of whoever was cut short, only what it said can be compared.
        most = None if end is not None and end.reason in NATURAL else len(output)
        expected = alone(request, self.max_context, index, most=most)
        assert output == expected[: len(output)]
        if end is None:
            assert not output
            assert not world.reason(request.id).is_success
            return
        assert world.drawn[world.numbers[key]] == end.completion_tokens + end.discarded_tokens
        if end.reason in {FinishReason.CANCELLED, FinishReason.OVERLOADED}:
            assert request.id in self.wished
        elif end.reason is FinishReason.DEADLINE:
            assert request.deadline is not None or request.ttft_deadline is not None
        elif end.reason is FinishReason.ENGINE_FAILED:
            assert world.numbers[key] in world.failed
        elif end.reason is FinishReason.STOP_STRING:
            assert end.completion_tokens == self.stopped[key]
            assert end.completion_tokens + end.discarded_tokens >= len(output)
        else:
            assert output == expected
            assert end.reason is natural_end(request, expected)
