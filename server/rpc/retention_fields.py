"""``retention``: which stretches of the prompt are worth keeping. Each function raises InvalidRequestError."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engines.contract import Retention
from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.kv.node import USUAL_PRIORITY

MOST_STRETCHES = 16
HIGHEST = 100


def check_retention(stretches: Sequence[pb.Retention], *, offered: bool) -> tuple[Retention, ...]:
    """Everything but the prompt's length. ``offered``: by the engine."""
    if stretches and not offered:
        raise InvalidRequestError("retention", "this engine does not take it (capabilities.retention)")
    if len(stretches) > MOST_STRETCHES:
        raise InvalidRequestError("retention", f"must have at most {MOST_STRETCHES} entries, it has {len(stretches)}")
    checked: list[Retention] = []
    for index, stretch in enumerate(stretches):
        start = (checked[-1].end if checked else 0) or 0
        if checked and checked[-1].end is None:
            raise InvalidRequestError(f"retention[{index - 1}].end", "is required where another entry follows")
        checked.append(_stretch(f"retention[{index}]", stretch, start))
    return tuple(checked)


def check_retention_length(stretches: Sequence[Retention], prompt_tokens: int) -> None:
    """Each stretch lies within the prompt."""
    for index, stretch in enumerate(stretches):
        if stretch.first >= prompt_tokens:
            raise InvalidRequestError(
                f"retention[{index}].first", f"must be below the prompt's {prompt_tokens} tokens, it is {stretch.first}"
            )
        if stretch.end is not None and stretch.end > prompt_tokens:
            raise InvalidRequestError(
                f"retention[{index}].end", f"must be at most the prompt's {prompt_tokens} tokens, it is {stretch.end}"
            )


def _stretch(field: str, stretch: pb.Retention, start: int) -> Retention:
    end = stretch.end if stretch.HasField("end") else None
    priority = stretch.priority if stretch.HasField("priority") else USUAL_PRIORITY
    if stretch.first < start:
        raise InvalidRequestError(f"{field}.first", f"must be at least {start}, it is {stretch.first}")
    if end is not None and end <= stretch.first:
        raise InvalidRequestError(f"{field}.end", f"must be above first, {stretch.first}, it is {end}")
    if not 0 <= priority <= HIGHEST:
        raise InvalidRequestError(f"{field}.priority", f"must be from 0 to {HIGHEST}, it is {priority}")
    return Retention(stretch.first, end, priority, _seconds(field, stretch))


def _seconds(field: str, stretch: pb.Retention) -> float | None:
    if not stretch.HasField("duration"):
        return None
    seconds: float = stretch.duration.seconds + stretch.duration.nanos / 1e9
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidRequestError(f"{field}.duration", f"must be above 0 s, it is {seconds:g} s")
    return seconds
