"""Every field of the native API on a whole server, on both kinds of engine."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2 as ops
from protos.firsttoken.v1.operations_pb2_grpc import OperationsStub
from server.app import App
from server.rpc.generation import REQUEST_ID_KEY
from tests.e2e.whole_server import ENGINES, say, serving
from tests.fakes.running import collect, serving_of, until

END = 256
WARM = pb.Sampling(temperature=1.0, seed=11)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call if hasattr(call, "__await__") else collect(call))
    return caught.value.code(), caught.value.details()


async def read_on(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def operations(app: App) -> OperationsStub:
    return OperationsStub(grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}"))


@pytest.mark.parametrize("engine", ENGINES)
async def test_complete_is_generate_whole(engine: str) -> None:
    message = say("Tell me", sampling=WARM, n=3, echo=True, logprobs=pb.Logprobs(top=2))
    async with serving(engine) as (_, stub):
        whole = await stub.Complete(message)
        texts = ["", "", ""]
        tokens: list[list[int]] = [[], [], []]
        logprobs: list[list[pb.PositionLogprobs]] = [[], [], []]
        events = [event async for event in stub.Generate(message)]
        for event in events[1:-1]:
            texts[event.delta.index] += event.delta.text
            tokens[event.delta.index] += event.delta.tokens
            logprobs[event.delta.index] += event.delta.logprobs
        assert [output.text for output in whole.outputs] == texts
        assert [list(output.tokens) for output in whole.outputs] == tokens
        assert [list(output.logprobs) for output in whole.outputs] == logprobs
        assert all(len(logs) == len(ids) == 40 for logs, ids in zip(logprobs, tokens, strict=True))
        assert all(len(position.top) == 2 for logs in logprobs for position in logs)
        assert whole.prompt == events[0].prompt
        assert whole.prompt.text == "Tell me"
        assert bytes(whole.prompt.tokens) == b"Tell me"
        final = events[-1].final
        assert [end.index for end in final.outputs] == [0, 1, 2]
        assert final.outputs == whole.final.outputs
        assert final.usage.completion_tokens == 120


@pytest.mark.parametrize("engine", ENGINES)
async def test_outputs_differ_are_reproducible_and_the_first_is_that_of_one(engine: str) -> None:
    async with serving(engine) as (_, stub):
        eight = await stub.Complete(say("x" * 512, n=8, sampling=WARM))
        again = await stub.Complete(say("x" * 512, n=8, sampling=WARM))
        one = await stub.Complete(say("x" * 512, sampling=WARM))
        texts = [output.text for output in eight.outputs]
        assert len(set(texts)) == 8
        assert [output.text for output in again.outputs] == texts
        assert one.outputs[0].text == texts[0]


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_prompt_of_eight_outputs_is_computed_once(engine: str) -> None:
    async with serving(engine, lifecycle__warm_up=False) as (app, stub):
        loop = serving_of(app).engine
        answer = await stub.Complete(say("y" * 512, n=8, max_tokens=10, stop=pb.Stop(ignore_end=True)))
        # Each further output computes the prompt's last token, to draw from it; the last token of each output is never computed.
        expected = 512 + 7 + 8 * 9
        await until(lambda: loop.stats().computed_tokens >= expected)
        assert (loop.stats().computed_tokens, loop.stats().prompt_tokens) == (expected, 512)
        assert answer.final.usage.cached_tokens == 0


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_stop_string_ends_one_output_and_no_other(engine: str) -> None:
    async with serving(engine) as (_, stub):
        message = say("Go", n=8, sampling=WARM)
        free = [output.text for output in (await stub.Complete(message)).outputs]
        stop = next(text[8:12] for text in free if sum(text[8:12] in other for other in free) == 1)
        message.stop.strings.append(stop)
        answer = await stub.Complete(message)
        for text, output, end in zip(free, answer.outputs, answer.final.outputs, strict=True):
            cut = text.find(stop)
            assert output.text == (text if cut < 0 else text[:cut])
            assert end.stop_string == ("" if cut < 0 else stop)


@pytest.mark.parametrize("engine", ENGINES)
async def test_stops_are_kept_where_asked(engine: str) -> None:
    async with serving(engine) as (_, stub):
        free = (await stub.Complete(say("Tell me"))).outputs[0]
        stop = free.text[10:13]
        kept = await stub.Complete(say("Tell me", stop=pb.Stop(strings=[stop], include=True)))
        assert kept.outputs[0].text == free.text[: free.text.index(stop) + 3]
        token = free.tokens[5]
        by_id = await stub.Complete(say("Tell me", stop=pb.Stop(token_ids=[token], include=True)))
        first = list(free.tokens).index(token)
        assert list(by_id.outputs[0].tokens) == list(free.tokens)[: first + 1]
        assert by_id.final.finish_reason == pb.FINISH_REASON_STOP_TOKEN


@pytest.mark.parametrize("engine", ENGINES)
async def test_ends_can_be_biased_put_off_and_ignored(engine: str) -> None:
    eager = pb.Sampling(logit_bias={END: 100.0})
    async with serving(engine) as (_, stub):
        ended = await stub.Complete(say("Hi", sampling=eager))
        assert (ended.outputs[0].text, ended.final.finish_reason) == ("", pb.FINISH_REASON_END)
        assert ended.final.usage.completion_tokens == 1
        later = await stub.Complete(say("Hi", sampling=eager, stop=pb.Stop(min_tokens=7)))
        assert len(later.outputs[0].tokens) == 7
        assert later.final.finish_reason == pb.FINISH_REASON_END
        ignored = await stub.Complete(say("Hi", sampling=eager, stop=pb.Stop(ignore_end=True)))
        assert list(ignored.outputs[0].tokens) == [END] * 40
        assert ignored.final.finish_reason == pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize("engine", ENGINES)
async def test_penalties_and_bans_act(engine: str) -> None:
    async with serving(engine) as (_, stub):
        once = await stub.Complete(say("Hi", max_tokens=20, sampling=pb.Sampling(presence_penalty=100.0)))
        assert len(set(once.outputs[0].tokens)) == 20
        pairs = await stub.Complete(say("Hi", max_tokens=200, sampling=pb.Sampling(no_repeat_ngram=2)))
        seen = list(itertools.pairwise(b"Hi" + bytes(pairs.outputs[0].tokens)))
        assert len(set(seen)) == len(seen)
        free = (await stub.Complete(say("Hi", max_tokens=200))).outputs[0].text
        word = free[30:32]
        clean = await stub.Complete(say("Hi", max_tokens=200, sampling=pb.Sampling(bad_words=[word])))
        assert word not in clean.outputs[0].text
        runs = [pb.TokenIds(ids=list(word.encode()))]
        assert await stub.Complete(say("Hi", max_tokens=200, sampling=pb.Sampling(bad_tokens=runs))) is not None


@pytest.mark.parametrize("engine", ENGINES)
async def test_bans_that_leave_nothing_end_their_own_request_and_no_other(engine: str) -> None:
    async with serving(engine) as (_, stub):
        other = asyncio.ensure_future(stub.Complete(say("Other", max_tokens=400)))
        everything = pb.Sampling(logit_bias=dict.fromkeys(range(259), -100.0))
        code, text = await refused(stub.Generate(say("Hi", sampling=everything)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "leave no token" in text
        assert len((await other).outputs[0].tokens) == 400


async def test_prompt_log_probabilities_are_those_of_the_same_tokens_as_output() -> None:
    """Scored as a prompt, cached or not, a text has the log-probabilities that it had as output. Executors score nothing."""
    async with serving("simulated") as (_, stub):
        first = await stub.Complete(say("Once upon", max_tokens=70, logprobs=pb.Logprobs(top=3)))
        text = [*b"Once upon", *first.outputs[0].tokens]
        whole = pb.GenerateRequest(
            prompt=pb.Prompt(token_ids=pb.TokenIds(ids=text)), max_tokens=0, logprobs=pb.Logprobs(prompt=True, top=3)
        )
        for _ in range(2):
            scored = await stub.Complete(whole)
            assert scored.prompt.first_logprob == 1
            assert len(scored.prompt.logprobs) == len(text) - 1
            assert list(scored.prompt.logprobs)[8:] == list(first.outputs[0].logprobs)
            assert scored.final.usage.cached_tokens == 0


async def test_an_executor_refuses_prompt_scores_by_name() -> None:
    async with serving("simulated-executor") as (_, stub):
        code, text = await refused(stub.Generate(say("Hi", logprobs=pb.Logprobs(prompt=True))))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith("logprobs.prompt: ")


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_prompt_is_cut_only_when_asked(engine: str) -> None:
    long = "z" * 9000
    async with serving(engine) as (_, stub):
        code, text = await refused(stub.Generate(say(long)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "9000" in text
        cut = await stub.Complete(say(long, truncate_prompt=30, echo=True))
        assert cut.prompt.text == "z" * 30
        assert cut.final.usage.prompt_tokens == 30


@pytest.mark.parametrize("engine", ENGINES)
async def test_models_by_name(engine: str) -> None:
    async with serving(engine) as (_, stub):
        assert (await stub.Complete(say("Hi", model="simulated-instant"))).outputs
        code, text = await refused(stub.Generate(say("Hi", model="gpt-5")))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "'gpt-5'" in text
        assert "'simulated-instant'" in text


@pytest.mark.parametrize("engine", ENGINES)
async def test_request_ids_are_unique_while_alive_and_free_at_once_after_case_H12(engine: str) -> None:
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, stub):
        call = stub.Generate(say("Hi", request_id="mine", max_tokens=500))
        await call.read()
        assert dict(await call.initial_metadata())[REQUEST_ID_KEY] == "mine"
        second = stub.Generate(say("Hi", request_id="mine"))
        code, text = await refused(second)
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert "'mine'" in text
        info = error_details_pb2.ErrorInfo()
        assert (await rpc_status.aio.from_call(second)).details[0].Unpack(info)
        assert info.metadata["request_id"] == "mine"
        assert (await operations(app).Abort(ops.AbortRequest(request_id="mine"))).aborted
        code, text = await refused(read_on(call))
        assert code is grpc.StatusCode.CANCELLED
        assert "Abort" in text
        assert not (await operations(app).Abort(ops.AbortRequest(request_id="mine"))).aborted
        for _ in range(20):
            await collect(stub.Generate(say("Hi", request_id="mine", max_tokens=1)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await operations(app).Abort(ops.AbortRequest())
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_abort_wakes_a_request_that_waits_case_D11(engine: str) -> None:
    async with serving(engine, "laptop", scheduler__max_sequences=1, lifecycle__warm_up=False) as (app, stub):
        blocker = stub.Generate(say("Long", max_tokens=2000))
        await blocker.read()
        waits = asyncio.ensure_future(stub.Complete(say("Waits", request_id="w")))
        await until(lambda: app._open_streams() == 2)
        assert (await operations(app).Abort(ops.AbortRequest(request_id="w"))).aborted
        code, _ = await refused(waits)
        assert code is grpc.StatusCode.CANCELLED
        blocker.cancel()


GUIDES: list[tuple[pb.Guide, Callable[[str], bool]]] = [
    (pb.Guide(regex="[a-c]{3}-[0-9]+!"), lambda text: text[:3].strip("abc") == "" and text.endswith("!")),
    (
        pb.Guide(choice=pb.Choice(options=["yes, sir", 'a "no"', "maybe\n"])),
        {"yes, sir", 'a "no"', "maybe\n"}.__contains__,
    ),
    (pb.Guide(grammar='start: "<" /[xyz]{2,4}/ ">"'), lambda text: text[0] == "<" and text[-1] == ">"),
    (
        pb.Guide(
            json_schema='{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["p q","r"]}},"required":["a","b"],"additionalProperties":false}'
        ),
        lambda text: set(json.loads(text)) == {"a", "b"},
    ),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("warm", [False, True])
async def test_guides_hold(engine: str, warm: bool) -> None:
    sampling = pb.Sampling(temperature=1.5, seed=4) if warm else pb.Sampling()
    async with serving(engine) as (_, stub):
        calls = [
            stub.Complete(say(f"Answer {number}", guide=guide, max_tokens=400, sampling=sampling))
            for number in range(3)
            for guide, _ in GUIDES
        ]
        free = stub.Complete(say("Free"))
        answers = await asyncio.gather(*calls)
        assert len((await free).outputs[0].tokens) == 40
        for answer, (_, fits) in zip(answers, GUIDES * 3, strict=True):
            if answer.final.finish_reason == pb.FINISH_REASON_END:
                assert fits(answer.outputs[0].text), answer.outputs[0].text
        assert sum(answer.final.finish_reason == pb.FINISH_REASON_END for answer in answers) >= 9


REFUSED_GUIDES = [
    (pb.Guide(), "guide: must set one of"),
    (pb.Guide(regex=""), "guide.regex: must have from 1 to 262144 bytes, it has 0"),
    (pb.Guide(regex="(?<=a)b"), "guide.regex: "),
    (pb.Guide(regex="("), "guide.regex: "),
    (pb.Guide(json_schema="{"), "guide.json_schema: "),
    (pb.Guide(json_schema='{"not":{}}'), "guide.json_schema: "),
    (pb.Guide(json_schema="7"), "guide.json_schema: "),
    (pb.Guide(grammar="start: nothing"), "guide.grammar: "),
    (pb.Guide(choice=pb.Choice()), "guide.choice: must have from 1"),
    (pb.Guide(choice=pb.Choice(options=["a", ""])), "guide.choice.options[1]: must not be empty"),
    (pb.Guide(regex="x" * 262145), "guide.regex: must have from 1 to 262144 bytes, it has 262145"),
    (
        pb.Guide(choice=pb.Choice(options=["a"] * 262145)),
        "guide.choice.options: must have at most 262144 entries, it has 262145",
    ),
]


@pytest.mark.parametrize("engine", ENGINES)
async def test_guides_that_cannot_be_held_are_refused_before_they_are_queued(engine: str) -> None:
    async with serving(engine) as (_, stub):
        for guide, field in REFUSED_GUIDES:
            code, text = await refused(stub.Complete(say("Hi", guide=guide)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith(field), text
        code, text = await refused(stub.Complete(say("Hi", guide=pb.Guide(regex="a"), stop=pb.Stop(ignore_end=True))))
        assert text.startswith("stop.ignore_end: ")


@pytest.mark.parametrize("engine", ENGINES)
async def test_eight_guided_outputs_each_hold(engine: str) -> None:
    async with serving(engine) as (_, stub):
        guide = pb.Guide(regex="[a-z]{5}( [a-z]{5}){2}")
        answer = await stub.Complete(say("Hi", n=8, guide=guide, sampling=pb.Sampling(temperature=2.0, seed=1)))
        texts = [output.text for output in answer.outputs]
        assert len(set(texts)) == 8
        assert all([len(word) for word in text.split(" ")] == [5, 5, 5] for text in texts)
        assert {end.finish_reason for end in answer.final.outputs} == {pb.FINISH_REASON_END}


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_seed_says_the_same_alone_in_a_batch_and_out_of_the_cache(engine: str) -> None:
    """Bit for bit. (Preemption: tests/scheduling, whose worlds draw by seeds as well.)"""
    prompts = [f"Prompt number {number} " * (1 + number % 9) for number in range(32)]

    def seeded(number: int, salt: str) -> pb.GenerateRequest:
        sampling = pb.Sampling(temperature=0.9, top_p=0.9, seed=number, frequency_penalty=0.3 * (number % 2))
        return say(prompts[number], max_tokens=10 + number, sampling=sampling, cache_salt=salt)

    async with serving(engine) as (_, stub):
        alone = [await stub.Complete(seeded(number, "a")) for number in range(32)]
        batch = await asyncio.gather(*(stub.Complete(seeded(number, "b")) for number in range(32)))
        cached = await asyncio.gather(*(stub.Complete(seeded(number, "a")) for number in range(32)))
        texts = [[answer.outputs[0].text for answer in answers] for answers in (alone, batch, cached)]
        assert texts[0] == texts[1] == texts[2]
        assert sum(answer.final.usage.cached_tokens for answer in cached) > 1000
