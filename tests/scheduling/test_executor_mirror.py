"""What is set aside for whom, as another thread sees it amid a change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from engines.contract import ExecutorLimits
from server.scheduling import executor_mirror
from server.scheduling.executor_mirror import ExecutorMirror

if TYPE_CHECKING:
    from _typeshed import TraceFunction

LIMITS = ExecutorLimits(
    vocab_size=500, block_size=4, block_count=32, max_batch_size=2, max_num_tokens=64, max_context=64
)


def amid_each_line(work: Callable[[], object], look: Callable[[], object]) -> list[object]:
    """What another thread may find between any two lines of the mirror's, and after them."""
    found: list[object] = []

    def trace(frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        if frame.f_code.co_filename != executor_mirror.__file__:
            return None
        sys.settrace(None)
        found.append(look())
        sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return [*found, look()]


@pytest.mark.parametrize("answers", [False, True])
def test_who_begins_to_run_never_seems_to_need_nothing(answers: bool) -> None:
    """When another leaves, and when an answer shows that it runs."""
    mirror = ExecutorMirror(LIMITS, inner_queue=2)
    assert mirror.enter(1, 20) == [1]
    assert mirror.enter(2, 15) == []
    assert mirror.waiting_inside == 1
    found = amid_each_line(lambda: mirror.runs(2) if answers else mirror.leave(1), lambda: mirror.blocks(2))
    assert len(found) > 5
    assert set(found) == {15}
    assert (mirror.waiting_inside, mirror.blocks(1), mirror.reserved) == (0, 20 * answers, 15 + 20 * answers)
    mirror.check_integrity({1, 2} if answers else {2})


def test_nothing_is_set_aside_for_who_is_not_inside() -> None:
    mirror = ExecutorMirror(LIMITS, inner_queue=1)
    mirror.enter(1, 20)
    mirror.leave(1)
    assert (mirror.blocks(1), mirror.blocks(2)) == (0, 0)
