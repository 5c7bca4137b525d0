"""The fields that say how long a request is: max_tokens, n, truncate_prompt, and whether all of it fits the model."""

from __future__ import annotations

from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import EngineInfo
from server.errors import InvalidRequestError
from server.rpc.limits import RequestLimits


def fit_prompt(prompt_tokens: int, max_tokens: int | None, field: str, limits: RequestLimits) -> int:
    """What may be generated behind so many prompt tokens, ``field`` naming where they came from. Raises InvalidRequestError."""
    if prompt_tokens == 0:
        raise InvalidRequestError(field, "must have at least 1 token, it has 0")
    if prompt_tokens > limits.max_prompt_tokens:
        raise InvalidRequestError(field, f"must have at most {limits.max_prompt_tokens} tokens, it has {prompt_tokens}")
    room = limits.max_context - prompt_tokens
    if max_tokens is None:
        return min(limits.default_max_tokens, room)
    if max_tokens > room:
        raise InvalidRequestError(
            "max_tokens",
            f"must be at most {room}, it is {max_tokens}: the prompt has {prompt_tokens} tokens of a context of {limits.max_context}",
        )
    return max_tokens


def fit_outputs(n: int, tokens: int, info: EngineInfo) -> None:
    """An executor sets the worst case of all outputs aside before it begins; what never fits must not wait for ever."""
    if info.capabilities.preemption:
        return
    blocks = n * -(-tokens // info.block_size)
    if blocks > info.block_count:
        most = info.block_count // -(-tokens // info.block_size)
        raise InvalidRequestError("n", f"must be at most {most} for prompts and max_tokens of this size, it is {n}")


def check_max_tokens(request: pb.GenerateRequest, limits: RequestLimits) -> int | None:
    """None where it is left to the server. Raises InvalidRequestError."""
    if not request.HasField("max_tokens"):
        return None
    if not 0 <= request.max_tokens < limits.max_context:
        raise InvalidRequestError(
            "max_tokens", f"must be from 0 to {limits.max_context - 1}, it is {request.max_tokens}"
        )
    return request.max_tokens


def check_outputs(request: pb.GenerateRequest, max_tokens: int | None, limits: RequestLimits) -> int:
    """How many outputs are asked for. Raises InvalidRequestError."""
    if not request.HasField("n"):
        return 1
    most = 1 if max_tokens == 0 else limits.max_outputs
    if not 1 <= request.n <= most:
        raise InvalidRequestError("n", f"must be from 1 to {most}, it is {request.n}")
    return request.n


def check_truncate_prompt(request: pb.GenerateRequest, limits: RequestLimits) -> int | None:
    """How many tokens of the prompt's end are kept, None = all. Raises InvalidRequestError."""
    if not request.HasField("truncate_prompt"):
        return None
    if not 1 <= request.truncate_prompt <= limits.max_prompt_tokens:
        raise InvalidRequestError(
            "truncate_prompt", f"must be from 1 to {limits.max_prompt_tokens}, it is {request.truncate_prompt}"
        )
    return request.truncate_prompt
