"""Reflection under both names."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as rpb

from server.rpc.port import HEALTH, SERVICES
from server.rpc.reflection import SERVICES as REFLECTION
from tests.fakes.running import running


@pytest.mark.parametrize("name", REFLECTION)
async def test_lists_and_describes_case_H3(name: str) -> None:
    async with running() as server:
        ask = server.channel.stream_stream(
            f"/{name}/ServerReflectionInfo",
            request_serializer=rpb.ServerReflectionRequest.SerializeToString,
            response_deserializer=rpb.ServerReflectionResponse.FromString,
        )
        questions = [
            rpb.ServerReflectionRequest(list_services=""),
            rpb.ServerReflectionRequest(file_containing_symbol="firsttoken.v1.Generation"),
        ]
        listed, described = [answer async for answer in ask(iter(questions))]
        names = {service.name for service in listed.list_services_response.service}
        assert names == {*SERVICES, *REFLECTION, HEALTH}
        files = [FileDescriptorProto.FromString(f) for f in described.file_descriptor_response.file_descriptor_proto]
        assert any(service.name == "Generation" for file in files for service in file.service)


async def test_can_be_turned_off() -> None:
    async with running(grpc__reflection=False) as server:
        call = server.channel.stream_stream(f"/{REFLECTION[0]}/ServerReflectionInfo")(iter([b""]))
        assert (await call.code()).name == "UNIMPLEMENTED"
