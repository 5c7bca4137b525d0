"""Every violation names its field, its limit and the value given; nothing of it reaches the engine."""

from __future__ import annotations

import grpc
import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from engines.sampling.params import SamplingParams
from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import GenerationRequest, PriorityClass
from server.errors import InvalidRequestError
from server.rpc.limits import RequestLimits, request_limits
from server.rpc.validation import check
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, configure, request, running

INFO = FakeEngine().info
LIMITS: RequestLimits = request_limits(configure(), INFO)
NAN = float("nan")


def ids(*values: int, **fields: object) -> pb.GenerateRequest:
    message = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=values)))
    message.MergeFrom(pb.GenerateRequest(**fields))  # type: ignore[arg-type]  # whatever the message takes
    return message


def turns(*messages: pb.Message) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=pb.Prompt(messages=pb.Messages(messages=messages)))


def sampling(**fields: float) -> pb.GenerateRequest:
    return request(sampling=pb.Sampling(**fields))  # type: ignore[arg-type]  # as above


# (request, field, what the text must hold: limits and the value)
VIOLATIONS: list[tuple[str, pb.GenerateRequest, str, tuple[str, ...]]] = [
    ("no prompt", pb.GenerateRequest(), "prompt", ("required", "text", "token_ids", "messages")),
    ("unset kind", pb.GenerateRequest(prompt=pb.Prompt()), "prompt", ("required",)),
    ("empty text", request(""), "prompt.text", ("empty",)),
    ("no ids", ids(), "prompt.token_ids", ("at least 1", "0")),
    ("negative id", ids(1, -7), "prompt.token_ids.ids[1]", ("0", "258", "-7")),
    ("id beyond the vocabulary", ids(259), "prompt.token_ids.ids[0]", ("258", "259")),
    ("too many ids", ids(*[1] * 512), "prompt.token_ids", ("511", "512")),
    ("too long a text", request("x" * 600), "prompt.text", ("511", "600")),
    ("no messages", turns(), "prompt.messages", ("at least 1", "0")),
    ("too many messages", turns(*[pb.Message(role="user")] * 512), "prompt.messages", ("at most 511", "512")),
    ("no role", turns(pb.Message(content="x")), "prompt.messages.messages[0].role", ("empty",)),
    ("extra", turns(pb.Message(role="user", extra="{")), "prompt.messages.messages[0].extra", ("JSON",)),
    (
        "extra role",
        turns(pb.Message(role="user", extra='{"role":"x"}')),
        "prompt.messages.messages[0].extra",
        ("role",),
    ),
    (
        "tools that are no list",
        pb.GenerateRequest(prompt=pb.Prompt(messages=pb.Messages(messages=[pb.Message(role="u")], tools="{}"))),
        "prompt.messages.tools",
        ("list",),
    ),
    (
        "tools for a template without",
        pb.GenerateRequest(prompt=pb.Prompt(messages=pb.Messages(messages=[pb.Message(role="u")], tools="[1]"))),
        "prompt.messages.tools",
        ("shows no tools",),
    ),
    ("negative max_tokens", request(max_tokens=-1), "max_tokens", ("from 0 to 511", "-1")),
    ("huge max_tokens", request(max_tokens=2**31 - 1), "max_tokens", ("511", "2147483647")),
    ("no room for max_tokens", request("x" * 12, max_tokens=501), "max_tokens", ("500", "501", "12", "512")),
    ("temperature NaN", sampling(temperature=NAN), "sampling.temperature", ("0 to 100", "nan")),
    ("temperature below", sampling(temperature=-0.5), "sampling.temperature", ("0 to 100", "-0.5")),
    ("temperature above", sampling(temperature=101), "sampling.temperature", ("0 to 100", "101")),
    ("temperature infinite", sampling(temperature=float("inf")), "sampling.temperature", ("100", "inf")),
    ("top_k negative", request(sampling=pb.Sampling(top_k=-1)), "sampling.top_k", ("at least 0", "-1")),
    ("top_p zero", sampling(top_p=0), "sampling.top_p", ("above 0", "at most 1", "0")),
    ("top_p above", sampling(top_p=1.5), "sampling.top_p", ("1.5",)),
    ("top_p NaN", sampling(top_p=NAN), "sampling.top_p", ("nan",)),
    ("min_p negative", sampling(min_p=-1), "sampling.min_p", ("0 to 1", "-1")),
    ("min_p NaN", sampling(min_p=NAN), "sampling.min_p", ("nan",)),
    ("stop strings", request(stop=pb.Stop(strings=["x"] * 17)), "stop.strings", ("16", "17")),
    ("empty stop string", request(stop=pb.Stop(strings=["x", ""])), "stop.strings[1]", ("1 to 1024", "0")),
    ("long stop string", request(stop=pb.Stop(strings=["é" * 513])), "stop.strings[0]", ("1024", "1026")),
    ("stop ids", request(stop=pb.Stop(token_ids=[1] * 65)), "stop.token_ids", ("64", "65")),
    ("stop id unknown", request(stop=pb.Stop(token_ids=[0, 300])), "stop.token_ids[1]", ("258", "300")),
    ("stop id negative", request(stop=pb.Stop(token_ids=[-1])), "stop.token_ids[0]", ("258", "-1")),
    ("unknown priority", request(priority=99), "priority", ("PRIORITY_BATCH", "99")),  # an open enum takes it
    ("long salt", request(cache_salt="s" * 257), "cache_salt", ("256", "257")),
    ("no ttft_deadline", request(ttft_deadline=Duration()), "ttft_deadline", ("above 0", "0 s")),
    ("past ttft_deadline", request(ttft_deadline=Duration(seconds=-1)), "ttft_deadline", ("above 0", "-1 s")),
    ("adapter", request(adapter="lora"), "adapter", ("this engine has no adapters", "capabilities.adapters")),
    ("mixed signs", request(ttft_deadline=Duration(seconds=5, nanos=-1)), "ttft_deadline.nanos", ("999999999", "-1")),
    (
        "nanos above",
        request(ttft_deadline=Duration(nanos=10**9)),
        "ttft_deadline.nanos",
        ("0 to 999999999", "1000000000"),
    ),
    ("endless", request(ttft_deadline=Duration(seconds=2**62)), "ttft_deadline", ("at most 315576000000 s", "4.6")),
    ("long request_id", request(request_id="x" * 129), "request_id", ("128", "129")),
    ("request_id that no header carries", request(request_id="a\nb"), "request_id", ("printable ASCII", "a\\nb")),
    ("n of 0", request(n=0), "n", ("from 1 to 16", "0")),
    ("n too many", request(n=17), "n", ("from 1 to 16", "17")),
    ("n without output", request(n=2, max_tokens=0), "n", ("from 1 to 1", "2")),
    ("guide on an engine without", request(guide=pb.Guide(regex="a")), "guide", ("capabilities.masks",)),
    ("prompt scores on an engine without", request(logprobs=pb.Logprobs(prompt=True)), "logprobs.prompt", ("score",)),
    ("logprobs", request(logprobs=pb.Logprobs(top=21)), "logprobs.top", ("from 0 to 20", "21")),
    ("repetition_penalty", sampling(repetition_penalty=0), "sampling.repetition_penalty", ("above 0", "0")),
    ("presence_penalty", sampling(presence_penalty=101), "sampling.presence_penalty", ("-100 to 100", "101")),
    ("frequency_penalty", sampling(frequency_penalty=NAN), "sampling.frequency_penalty", ("-100 to 100", "nan")),
    ("ngram", request(sampling=pb.Sampling(no_repeat_ngram=65)), "sampling.no_repeat_ngram", ("0 to 64", "65")),
    ("biased id", request(sampling=pb.Sampling(logit_bias={259: 1.0})), "sampling.logit_bias[259]", ("258", "259")),
    ("bias", request(sampling=pb.Sampling(logit_bias={3: -101})), "sampling.logit_bias[3]", ("-100 to 100", "-101")),
    ("bad words", request(sampling=pb.Sampling(bad_words=["x"] * 65)), "sampling.bad_words", ("64", "65")),
    ("empty bad word", request(sampling=pb.Sampling(bad_words=[""])), "sampling.bad_words[0]", ("1 to 128", "0")),
    ("empty bad run", request(sampling=pb.Sampling(bad_tokens=[pb.TokenIds()])), "sampling.bad_tokens[0].ids", ("0",)),
    (
        "bad id",
        request(sampling=pb.Sampling(bad_tokens=[pb.TokenIds(ids=[1, 999])])),
        "sampling.bad_tokens[0].ids[1]",
        ("258", "999"),
    ),
    ("min_tokens", request(stop=pb.Stop(min_tokens=-1)), "stop.min_tokens", ("0 to 511", "-1")),
    ("min above max", request(stop=pb.Stop(min_tokens=9), max_tokens=8), "stop.min_tokens", ("8", "9")),
    ("truncate to nothing", request(truncate_prompt=0), "truncate_prompt", ("1 to 511", "0")),
]


async def test_every_violation_is_invalid_argument_and_the_server_serves_on_case_M1_M2_M6_M7_M9() -> None:
    async with running() as server:
        for name, message, field, parts in VIOLATIONS:
            call = server.generation.Generate(message)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collect(call)
            error = caught.value
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            status = await rpc_status.aio.from_call(call)
            info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            assert status.details[0].Unpack(info), name
            assert status.details[1].Unpack(bad), name
            assert info.reason in ("INVALID_REQUEST", "NOT_BUILT"), name
            assert [violation.field for violation in bad.field_violations] == [field], name
            text = error.details()
            assert text.startswith(f"{field}: "), (name, text)
            assert all(part in text for part in parts), (name, text)
        assert len(server.engine.submitted) == 2  # the warm-up alone
        await collect(server.generation.Generate(request(max_tokens=1)))
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=interactive,outcome=invalid}"] == len(VIOLATIONS)


@pytest.mark.parametrize("letter", ["m", "é", "模"])
async def test_an_error_that_quotes_megabytes_still_arrives_as_itself(letter: str) -> None:
    async with running() as server:
        call = server.generation.Generate(request(model=letter * 1_000_000))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(call)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "bytes left out" in str(caught.value.details())
        assert (await rpc_status.aio.from_call(call)).details


async def test_the_boundary_itself_is_accepted_case_M4() -> None:
    async with running() as server:
        _, _, final = await collect(server.generation.Generate(request("x" * 511, max_tokens=1)))
        assert final.usage.prompt_tokens + final.usage.completion_tokens == 512
        _, _, final = await collect(server.generation.Generate(ids(*[258] * 12, max_tokens=500)))
        assert final.usage.completion_tokens == 500


async def test_unset_max_tokens_is_the_default_or_what_the_context_leaves() -> None:
    async with running(limits__default_max_tokens=20) as server:
        _, _, final = await collect(server.generation.Generate(request()))
        assert final.usage.completion_tokens == 20
        _, _, final = await collect(server.generation.Generate(request("x" * 505)))
        assert final.usage.completion_tokens == 7


async def test_zero_max_tokens_computes_the_prompt_and_returns_no_token() -> None:
    async with running() as server:
        tokens, text, final = await collect(server.generation.Generate(request(max_tokens=0)))
        assert (tokens, text, final.finish_reason) == ([], "", pb.FINISH_REASON_LENGTH)


def build(message: pb.GenerateRequest) -> GenerationRequest:
    return check(message, LIMITS, INFO).build([1, 2], LIMITS, INFO, request_id=9, arrival=50.0, deadline=60.0)


def test_what_is_valid_reaches_the_engine_as_it_was_given() -> None:
    built = build(
        request(
            max_tokens=7,
            sampling=pb.Sampling(temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=2**64 - 1),
            stop=pb.Stop(token_ids=[5, 6, 5]),
            priority=pb.PRIORITY_BATCH,
            cache_salt="tenant é",
            ttft_deadline=Duration(seconds=1, nanos=500_000_000),
            n=1,
        )
    )
    assert built == GenerationRequest(
        id=9,
        prompt=(1, 2),
        max_tokens=7,
        sampling=SamplingParams(temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=2**64 - 1),
        end_ids=(256,),
        stop_ids=(5, 6),
        priority=PriorityClass.BATCH,
        tenant="",
        cache_salt="tenant é".encode(),
        arrival=50.0,
        deadline=60.0,
        ttft_deadline=51.5,
    )


def test_unset_sampling_is_greedy_and_a_seed_is_drawn_where_it_matters() -> None:
    first, second = build(request()).sampling, build(request()).sampling
    assert (first.temperature, first.top_k, first.top_p, first.min_p) == (0.0, 0, 1.0, 0.0)
    assert first.seed != second.seed
    assert 0 <= first.seed < 2**64


def test_an_engine_that_holds_back_one_ending_id_refuses_more() -> None:
    one = msgspec.structs.replace(INFO.capabilities, held_back=1)
    info = msgspec.structs.replace(INFO, capabilities=one, end_ids=(256,))
    assert check(request(stop=pb.Stop(min_tokens=2)), LIMITS, info).min_tokens == 2
    assert check(request(stop=pb.Stop(min_tokens=2, ignore_end=True, token_ids=[5])), LIMITS, info).min_tokens == 2
    with pytest.raises(
        InvalidRequestError, match=r"stop\.min_tokens: this engine holds back at most 1 ending id .* has 2"
    ):
        check(request(stop=pb.Stop(min_tokens=2, token_ids=[5])), LIMITS, info)
    assert check(request(stop=pb.Stop(min_tokens=2, token_ids=[5])), LIMITS, INFO).min_tokens == 2


def test_an_adapter_is_found_by_its_name() -> None:
    info = msgspec.structs.replace(INFO, adapters=("formal", "legal"))
    for name, number in (("", 0), ("formal", 1), ("legal", 2)):
        checked = check(request(adapter=name), LIMITS, info)
        built = checked.build([1], LIMITS, info, request_id=1, arrival=0.0, deadline=None)
        assert built.adapter == number
    with pytest.raises(
        InvalidRequestError, match="adapter: must be one of this engine's, formal, legal; it is 'casual'"
    ):
        check(request(adapter="casual"), LIMITS, info)


def test_what_is_not_cut_is_refused_and_what_is_cut_keeps_its_end() -> None:
    long = ids(*[1] * 600)
    with pytest.raises(InvalidRequestError, match="at most 511 tokens, it has 600"):
        check(long, LIMITS, INFO)
    long.truncate_prompt = 3
    built = check(long, LIMITS, INFO).build([5] * 597 + [6, 7, 8], LIMITS, INFO, request_id=1, arrival=0, deadline=None)
    assert built.prompt == (6, 7, 8)


def test_what_is_cut_off_is_not_looked_at_and_what_is_kept_is_named_by_its_place() -> None:
    """A message holds millions of ids; looking at each would take the event loop from everybody."""
    cut = ids(*[-1] * 600, 6, 7)
    cut.truncate_prompt = 2
    assert check(cut, LIMITS, INFO).prompt.ids == (6, 7)
    cut.truncate_prompt = 3
    with pytest.raises(InvalidRequestError, match=r"prompt\.token_ids\.ids\[599\]: must be from 0 to 258, it is -1"):
        check(cut, LIMITS, INFO)


def test_an_executor_is_not_asked_for_more_blocks_than_it_has() -> None:
    reserving = msgspec.structs.replace(INFO, capabilities=msgspec.structs.replace(INFO.capabilities, preemption=False))
    checked = check(request(n=16, max_tokens=100), LIMITS, reserving)
    with pytest.raises(InvalidRequestError, match=r"n: must be at most 9 .* it is 16"):
        checked.build([1] * 10, LIMITS, reserving, request_id=1, arrival=0.0, deadline=None)


def test_what_an_executor_does_not_offer_is_refused_by_name() -> None:
    """Guides of a dialect that its library does not have, and log-probabilities that it does not tell."""
    offered = msgspec.structs.replace(
        INFO.capabilities, masks=True, guides=("json_schema", "regex", "choice"), top_logprobs=0
    )
    executor = msgspec.structs.replace(INFO, capabilities=offered)
    limits = request_limits(configure(), executor)
    with pytest.raises(
        InvalidRequestError, match=r"guide\.grammar: this engine's guides are json_schema, regex, choice"
    ):
        check(request(guide=pb.Guide(grammar="start: /a/")), limits, executor)
    assert check(request(guide=pb.Guide(regex="a")), limits, executor).sampling.guide is not None
    with pytest.raises(InvalidRequestError, match=r"logprobs\.top.*from 0 to 0.*it is 3"):
        check(request(logprobs=pb.Logprobs(top=3)), limits, executor)
    assert check(request(logprobs=pb.Logprobs(top=0)), limits, executor).sampling.logprobs == 0


@pytest.mark.parametrize("stop", [["\ud7ff"], ["x" * 1024], ["a", "b"] * 8])
def test_stop_strings_at_their_limits_are_accepted(stop: list[str]) -> None:
    assert check(request(stop=pb.Stop(strings=stop)), LIMITS, INFO).stop_strings.firsts == {
        string[0] for string in stop
    }


def test_a_priority_is_never_guessed() -> None:
    expected = {0: 0, 1: 0, 2: 1, 3: 2}
    for value, priority in expected.items():
        assert check(request(priority=value), LIMITS, INFO).priority == priority
    with pytest.raises(InvalidRequestError):
        check(request(priority=4), LIMITS, INFO)
