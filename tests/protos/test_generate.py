"""The committed stubs are the protocol's, and the protocol explains itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

from protos import generate

# Field numbers of descriptor.proto: where a definition lies in its file's tree of source locations.
MESSAGE, ENUM, SERVICE, FIELD, NESTED, NESTED_ENUM, ONEOF, VALUE, METHOD = 4, 5, 6, 2, 3, 4, 8, 2, 2


def definitions(file: FileDescriptorProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    for i, message in enumerate(file.message_type):
        yield from _message(message, (MESSAGE, i), message.name)
    for i, enum in enumerate(file.enum_type):
        yield from _enum(enum, (ENUM, i), enum.name)
    for i, service in enumerate(file.service):
        yield service.name, (SERVICE, i)
        yield from ((f"{service.name}.{rpc.name}", (SERVICE, i, METHOD, j)) for j, rpc in enumerate(service.method))


def _message(message: DescriptorProto, at: tuple[int, ...], name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name, at
    yield from ((f"{name}.{field.name}", (*at, FIELD, i)) for i, field in enumerate(message.field))
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    for i, oneof in enumerate(message.oneof_decl):
        if i not in synthetic:
            yield f"{name}.{oneof.name}", (*at, ONEOF, i)
    for i, nested in enumerate(message.nested_type):
        if nested.options.map_entry:
            continue  # protoc's own, behind a map field
        yield from _message(nested, (*at, NESTED, i), f"{name}.{nested.name}")
    for i, enum in enumerate(message.enum_type):
        yield from _enum(enum, (*at, NESTED_ENUM, i), f"{name}.{enum.name}")


def _enum(enum: EnumDescriptorProto, at: tuple[int, ...], name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name, at
    yield from ((f"{name}.{value.name}", (*at, VALUE, i)) for i, value in enumerate(enum.value))


def test_regenerating_gives_the_committed_bytes(tmp_path: Path) -> None:
    written = generate.generate(tmp_path)
    assert len(written) == 4 * len(generate.proto_files()) > 0
    for path in written:
        assert (generate.ROOT / path).read_bytes() == (tmp_path / path).read_bytes(), f"{path}: run `make proto`"


@pytest.mark.parametrize("file", generate.describe(), ids=lambda file: Path(file.name).stem)
def test_every_definition_has_a_comment(file: FileDescriptorProto) -> None:
    comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}
    names = dict(definitions(file))
    assert names
    assert [name for name, at in names.items() if not comments.get(at)] == []
