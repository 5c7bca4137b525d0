"""Tensors, raw and typed: the same elements either way, and whatever is wrong with them is told by the input's name."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.inference import grpc_service_pb2 as wire
from server.errors import InvalidRequestError
from server.rpc.kserve.tensors import DATATYPES, add_output, read_inputs

TYPED = {name: kind for name, kind in DATATYPES.items() if kind.contents}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "INT8": st.integers(-128, 127),
    "INT16": st.integers(-(2**15), 2**15 - 1),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT8": st.integers(0, 255),
    "UINT16": st.integers(0, 2**16 - 1),
    "UINT32": st.integers(0, 2**32 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32, allow_nan=False),
    "FP64": st.floats(allow_nan=False),
    "BYTES": st.binary(max_size=20),
}


def typed(datatype: str, values: list[Any], shape: list[int] | None = None) -> wire.ModelInferRequest:
    request = wire.ModelInferRequest()
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[len(values)] if shape is None else shape)
    getattr(tensor.contents, DATATYPES[datatype].contents).extend(values)
    return request


def raw(datatype: str, data: bytes, shape: list[int]) -> wire.ModelInferRequest:
    request = wire.ModelInferRequest(raw_input_contents=[data])
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    return request


@pytest.mark.parametrize("datatype", TYPED)
@given(data=st.data())
def test_raw_and_typed_contents_are_the_same_elements(datatype: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[datatype], max_size=9))
    response = wire.ModelInferResponse()
    add_output(response, "x", datatype, [len(values)], values)
    packed = response.raw_output_contents[0]
    assert read_inputs(raw(datatype, packed, [len(values)]))["x"].values == values
    assert read_inputs(typed(datatype, values))["x"].values == values


def test_half_precision_comes_raw_alone() -> None:
    assert read_inputs(raw("FP16", struct.pack("<2e", 0.5, -2.0), [2]))["x"].values == [0.5, -2.0]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (typed("INT32", [1, 2], [3]), r"x: has the shape \[3\], 3 elements, but contents of 2"),
        (typed("INT32", [1], [-1]), r"x: must have at most 8 dimensions, none negative, its shape is \[-1\]"),
        (typed("INT32", [1], [1] * 9), "at most 8 dimensions"),
        (typed("INT32", [1], [2**62, 2**62]), "but contents of 1"),
        (typed("INT8", [300]), "x: of datatype INT8 cannot hold 300"),
        (raw("INT32", b"\0" * 5, [1]), "x: has 5 raw bytes, no multiple of its elements' 4"),
        (raw("BYTES", b"\x05\0\0\0ab", [1]), "x: has 6 raw bytes, which end inside element 0"),
        (raw("BYTES", b"\xff\xff\xff\xff", [1]), "end inside element 0"),
        (raw("COMPLEX", b"", [1]), "x: has the datatype 'COMPLEX'; known are BOOL, "),
    ],
)
def test_what_is_wrong_is_told_by_name(request_: wire.ModelInferRequest, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        read_inputs(request_)


def test_both_forms_a_wrong_field_and_a_second_name_are_refused() -> None:
    both = typed("INT32", [1])
    both.raw_input_contents.append(b"\1\0\0\0")
    with pytest.raises(InvalidRequestError, match="x: has contents and raw_input_contents"):
        read_inputs(both)
    wrong = typed("INT32", [1])
    wrong.inputs[0].datatype = "FP32"
    with pytest.raises(InvalidRequestError, match="x: of datatype FP32 must have fp32_contents, it has int_contents"):
        read_inputs(wrong)
    twice = typed("INT32", [1])
    twice.inputs.append(twice.inputs[0])
    with pytest.raises(InvalidRequestError, match=r"inputs\[1\].name: names 'x' a second time"):
        read_inputs(twice)
    short = typed("INT32", [1])
    short.inputs.add(name="y", datatype="INT32", shape=[1])
    short.raw_input_contents.append(b"\1\0\0\0")
    with pytest.raises(InvalidRequestError, match="must have an entry for each of the 2 inputs, it has 1"):
        read_inputs(short)
