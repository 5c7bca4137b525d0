"""No token, a wrong one, an expired one, another tenant's: the right status, and nothing learnt. Over real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_status import rpc_status

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2
from protos.inference import grpc_service_pb2 as wire
from protos.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from server.access.directory import hash_token
from server.text.tokenizer_pool import TokenizerPool
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, request, running, until

ADMIN, ACME, OTHER, STALE = "admin-token", "acme-token", "other-token", "stale-token"


def access_file(folder: Path, acme: str = "", *, anonymous: str = "") -> Path:
    path = folder / "access.toml"
    path.write_text(
        f"""
        anonymous = "{anonymous}"
        [tenants.admin]
        tokens = [{{ sha256 = "{hash_token(ADMIN)}" }}]
        operator = true
        [tenants.acme]
        tokens = [{{ sha256 = "{hash_token(ACME)}" }}, {{ sha256 = "{hash_token(STALE)}", expires = 2020-01-01T00:00:00Z }}]
        {acme}
        [tenants.other]
        tokens = [{{ sha256 = "{hash_token(OTHER)}" }}]
        """
    )
    return path


def as_(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, grpc.aio.AioRpcError]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (collect(call) if hasattr(call, "__aiter__") else call)
    return caught.value.code(), caught.value.details(), caught.value


def details_of(error: grpc.aio.AioRpcError) -> tuple[dict[str, str], float]:
    """(ErrorInfo.metadata, seconds of RetryInfo)."""
    status = rpc_status.from_call(error)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    return dict(info.metadata), retry.retry_delay.ToTimedelta().total_seconds()


async def generate(server: Running, token: str, **fields: Any) -> pb.Final:
    return (await collect(server.generation.Generate(request(**fields), metadata=as_(token))))[2]


async def test_whoever_has_no_valid_credentials_learns_nothing(tmp_path: Path) -> None:
    async with running(access__file=access_file(tmp_path)) as server:
        missing = await refusal(server.generation.Generate(request()))
        assert missing[0] is grpc.StatusCode.UNAUTHENTICATED
        answers = set()
        for authorization in ("Bearer wrong", f"Bearer {STALE}", f"Basic {ACME}", "Bearer", ACME):
            metadata = (("authorization", authorization),)
            for message in (request(), request(model="elsewhere"), pb.GenerateRequest()):
                code, details, _ = await refusal(server.generation.Generate(message, metadata=metadata))
                answers.add((code, details))
        assert answers == {(grpc.StatusCode.UNAUTHENTICATED, "the credentials are not valid")}
        # Not even whether a message parses.
        raw = server.channel.unary_unary("/firsttoken.v1.Generation/Tokenize")(b"\xff\xff", metadata=as_("wrong"))
        assert (await refusal(raw))[0] is grpc.StatusCode.UNAUTHENTICATED
        parsed = server.channel.unary_unary("/firsttoken.v1.Generation/Tokenize")(b"\xff\xff", metadata=as_(ACME))
        assert (await refusal(parsed))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert server.engine.submitted[2:] == []  # but for the warm-up
        assert (await generate(server, ACME, max_tokens=3)).usage.completion_tokens == 3
        samples = await server.metrics()
        assert samples["firsttoken_authentication_failures_total{cause=missing}"] == 1
        assert samples["firsttoken_authentication_failures_total{cause=expired}"] == 3


async def test_probes_need_no_token_and_reflection_does(tmp_path: Path) -> None:
    async with running(access__file=access_file(tmp_path)) as server:
        await HealthStub(server.channel).Check(HealthCheckRequest())
        reflection = server.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        call = reflection(iter([b""]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_operations_are_for_operators(tmp_path: Path) -> None:
    async with running(FakeEngine(step_seconds=0.01), access__file=access_file(tmp_path)) as server:
        operations, abort = server.operations, operations_pb2.AbortRequest(request_id="mine")
        for call in (operations.GetLoad, operations.Abort):
            kind = operations_pb2.GetLoadRequest() if call == operations.GetLoad else abort
            code, _, _ = await refusal(call(kind, metadata=as_(ACME)))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert (await refusal(call(kind)))[0] is grpc.StatusCode.UNAUTHENTICATED
        await operations.GetServerInfo(operations_pb2.GetServerInfoRequest(), metadata=as_(ACME))
        await operations.GetLoad(operations_pb2.GetLoadRequest(), metadata=as_(ADMIN))
        # Two tenants may use one id; neither learns of the other's; an operator ends both.
        calls = [
            server.generation.Generate(request(request_id="mine", max_tokens=400), metadata=as_(token))
            for token in (ACME, OTHER)
        ]
        for running_call in calls:
            await running_call.initial_metadata()
        again = server.generation.Generate(request(request_id="mine"), metadata=as_(ACME))
        assert (await refusal(again))[0] is grpc.StatusCode.ALREADY_EXISTS
        assert (await operations.Abort(abort, metadata=as_(ADMIN))).aborted
        for running_call in calls:
            assert (await refusal(running_call))[0] is grpc.StatusCode.CANCELLED


async def test_classes_ceiling_and_salt_reach_the_engine(tmp_path: Path) -> None:
    rules = 'classes = ["standard"]\nceiling = "standard"'
    async with running(access__file=access_file(tmp_path, rules), lifecycle__warm_up=False) as server:
        call = server.generation.Generate(request(max_tokens=1, priority=pb.PRIORITY_INTERACTIVE), metadata=as_(ACME))
        assert dict(await call.initial_metadata())["firsttoken-priority"] == "standard"
        await collect(call)
        code, details, _ = await refusal(
            server.generation.Generate(request(priority=pb.PRIORITY_BATCH), metadata=as_(ACME))
        )
        assert (code, details) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "priority: batch is not permitted to you; you may use standard",
        )
        await generate(server, OTHER, max_tokens=1)
        mine, others = server.engine.submitted
        assert (mine.tenant, mine.priority.name, others.tenant) == ("acme", "STANDARD", "other")
        assert mine.prompt == others.prompt
        assert mine.cache_salt != others.cache_salt


async def test_a_used_up_limit_refuses_before_anybody_tokenizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(
        FakeEngine(max_context=2048), access__file=access_file(tmp_path, "tokens_per_minute = 1000")
    ) as server:
        await generate(server, ACME, text="x", max_tokens=600)
        monkeypatch.delattr(TokenizerPool, "encode")  # whoever asks for it fails
        over = await refusal(server.generation.Generate(request("x", max_tokens=900), metadata=as_(ACME)))
        assert details_of(over[2])[0] == {"limit": "tenant_tokens"}


async def test_limits_hold_at_the_edge_and_one_beyond(tmp_path: Path) -> None:
    rules = "max_concurrent = 2\ntokens_per_minute = 1000\nrequests_per_minute = 5"
    engine = FakeEngine(step_seconds=0.01)
    async with running(engine, access__file=access_file(tmp_path, rules)) as server:
        calls = [server.generation.Generate(request("x", max_tokens=400), metadata=as_(ACME)) for _ in range(2)]
        for call in calls:
            await call.initial_metadata()
        third = await refusal(server.generation.Generate(request("x"), metadata=as_(ACME)))
        assert third[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(third[2])[0] == {"limit": "tenant_concurrency"}
        await generate(server, OTHER, max_tokens=1)  # nobody else notices
        for call in calls:
            call.cancel()
        await until(lambda: not server.app._open_streams())
        engine.step_seconds = 0.0001
        # What the cancelled ones did not use came back: 1000 - 2 prompts - a few outputs.
        await generate(server, ACME, text="x", max_tokens=400)
        await generate(server, ACME, text="x", max_tokens=400)
        over = await refusal(server.generation.Generate(request("x", max_tokens=400), metadata=as_(ACME)))
        limit, retry = details_of(over[2])
        assert (over[0], limit) == (grpc.StatusCode.RESOURCE_EXHAUSTED, {"limit": "tenant_tokens"})
        assert 0 < retry < 60
        sixth = await refusal(
            server.generation.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="x")), metadata=as_(ACME))
        )
        limit, retry = details_of(sixth[2])
        assert limit == {"limit": "tenant_requests"}
        assert 0 < retry <= 12
        samples = await server.metrics()
        assert samples["firsttoken_rejections_total{reason=tenant_concurrency}"] == 1


async def test_a_changed_file_holds_from_the_next_call_on_case_H11(tmp_path: Path) -> None:
    path = access_file(tmp_path)
    async with running(FakeEngine(step_seconds=0.01), access__file=path, access__reload_period=0.02) as server:
        stream = server.generation.Generate(request(max_tokens=100), metadata=as_(ACME))
        await stream.initial_metadata()
        path.write_text("[tenants")  # half written: the old stays
        await until_sample(server, "firsttoken_reloads_total{outcome=failed,what=access}")
        await generate(server, ACME, max_tokens=1)
        path.write_text(f'[tenants.new]\ntokens = [{{ sha256 = "{hash_token("new")}" }}]')
        await until_sample(server, "firsttoken_reloads_total{outcome=ok,what=access}")
        await generate(server, "new", max_tokens=1)
        assert (await refusal(server.generation.Generate(request(), metadata=as_(ACME))))[0] is (
            grpc.StatusCode.UNAUTHENTICATED
        )
        assert [message.WhichOneof("event") async for message in stream][-1] == "final"  # who runs may finish


async def until_sample(server: Running, name: str) -> None:
    while not (await server.metrics()).get(name):
        pass


async def test_no_token_reaches_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with running(
        access__file=access_file(tmp_path), telemetry__log_level="debug", telemetry__log_format="json"
    ) as server:
        await refusal(server.generation.Generate(request(), metadata=as_("wrong-secret")))
        await refusal(server.generation.Generate(request(), metadata=as_(STALE)))
        await generate(server, ACME, max_tokens=1)
    err = capfd.readouterr().err
    assert '"tenant": "acme"' in err
    assert not any(secret in err for secret in ("wrong-secret", STALE, ACME, hash_token(ACME)))


async def test_the_line_of_a_refused_request_says_whose_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = access_file(tmp_path, "requests_per_minute = 1")
    async with running(access__file=path, telemetry__log_level="info", telemetry__log_format="json") as server:
        await collect(server.generation.Generate(request(max_tokens=1), metadata=as_(ACME)))
        await refusal(server.generation.Generate(request(max_tokens=1), metadata=as_(ACME)))
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    lines = [line for line in lines if line["event"] == "request"]
    assert [(line["outcome"], line["tenant"]) for line in lines] == [("ok", "acme"), ("overloaded", "acme")]
    assert lines[1]["limit"].startswith("tenant_")


async def test_a_server_that_cannot_read_its_file_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text("[tenants.a]\nlimit = 1")
    for file in (path, tmp_path / "none.toml"):
        with pytest.raises(AssertionError, match="the server ended with 1"):
            async with running(access__file=file):
                pass


async def test_a_stop_by_id_reaches_its_own_tenants_request_and_no_other(tmp_path: Path) -> None:
    async with running(FakeEngine(step_seconds=0.01), access__file=access_file(tmp_path)) as server:
        inference = GRPCInferenceServiceStub(server.channel)
        stop = wire.ModelInferRequest(model_name="ensemble", id="mine")
        stop.inputs.add(name="stop", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
        call = server.generation.Generate(request(request_id="mine", max_tokens=400), metadata=as_(ACME))
        await call.initial_metadata()
        await inference.ModelInfer(stop, metadata=as_(OTHER))
        assert server.app._open_streams() == 1
        await inference.ModelInfer(stop, metadata=as_(ACME))
        assert (await refusal(call))[0] is grpc.StatusCode.CANCELLED
