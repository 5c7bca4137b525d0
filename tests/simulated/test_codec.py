"""Every message of the contract survives the way to another process."""

from __future__ import annotations

import msgspec
import pytest

from engines.codec import decode, encode
from engines.contract import (
    BlockCopy,
    ExecutorFinish,
    ExecutorRequest,
    ExecutorResponse,
    Output,
    Row,
    Sample,
    Score,
    SequenceSpec,
    StepPlan,
    StepResult,
)
from engines.sampling.params import SamplingParams
from tests.simulated.rig import ids

SAMPLING = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, seed=2**64 - 1, logprobs=3)

MESSAGES = [
    StepPlan(
        step=3,
        rows=[
            Row(sequence=1, tokens=ids(5, 2**31 - 1), past=0, blocks=(ids(4, 9),), want=Score(targets=ids(7), top=2)),
            Row(sequence=2, tokens=None, past=33, blocks=(ids(1),), want=Sample(count=1)),
            Row(sequence=3, tokens=ids(8), past=1, blocks=(ids(2), ids(3)), want=None, adapter=4),
        ],
        copies=[BlockCopy(source=1, target=2)],
        opened=[SequenceSpec(sequence=1, index=2, sampling=SAMPLING, prompt=ids(5, 6))],
        closed=[11],
    ),
    StepResult(
        step=3,
        outputs=[Output(sequence=1, tokens=(4, 5), logprobs=(-0.5, -1.5), top=(((4, -0.5), (3, -2.0)), ((5, -1.5),)))],
        engine_seconds=0.25,
    ),
    ExecutorRequest(
        request=9, tokens=ids(1, 2), max_tokens=5, sampling=SAMPLING, end_ids=(2,), n=2, allotted_ms=30, salt=2**60
    ),
    ExecutorResponse(request=9, sequence_index=1, tokens=(3,), finish=ExecutorFinish.STOP_WORDS, final=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: msgspec.Struct) -> None:
    assert decode(encode(message), type(message)) == message


def test_a_truncated_token_array_is_refused() -> None:
    request = msgspec.msgpack.encode(
        {"request": 1, "tokens": b"\x01\x00\x00", "max_tokens": 1, "sampling": {}, "end_ids": []}
    )
    with pytest.raises(msgspec.ValidationError, match="4 bytes each, got 3"):
        decode(request, ExecutorRequest)


def test_what_the_contract_does_not_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="holds no complex"):
        encode(Output(sequence=1, tokens=(1j,)))  # type: ignore[arg-type]
