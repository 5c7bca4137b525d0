"""What every request executor refuses before it takes anything, and what a request may come to need."""

from __future__ import annotations

from engines.contract import ExecutorLimits, ExecutorRequest, PlanError


def worst_case_blocks(request: ExecutorRequest, block_size: int) -> int:
    """What the request may ever need: no reuse is counted on, every sequence goes on to max_tokens."""
    return request.n * -(-(len(request.tokens) + request.max_tokens) // block_size)


def check_request(request: ExecutorRequest, limits: ExecutorLimits) -> None:
    """Raises PlanError naming the field, the limit and the value."""
    who, tokens = f"request {request.request}", request.tokens
    total = len(tokens) + request.max_tokens
    if not tokens or min(tokens) < 0 or max(tokens) >= limits.vocab_size:
        raise PlanError(f"{who}: tokens must be one or more ids of 0 .. {limits.vocab_size - 1}")
    if request.max_tokens < 1 or total > limits.max_context:
        raise PlanError(f"{who}: max_tokens must be 1 .. {limits.max_context - len(tokens)}, got {request.max_tokens}")
    if not 1 <= request.n <= limits.max_batch_size:
        raise PlanError(f"{who}: n must be 1 .. {limits.max_batch_size}, got {request.n}")
    if not 0.0 <= request.priority <= 1.0:
        raise PlanError(f"{who}: priority must be 0 .. 1, got {request.priority}")
    if request.allotted_ms is not None and request.allotted_ms < 1:
        raise PlanError(f"{who}: allotted_ms must be at least 1, got {request.allotted_ms}")
    for token in (*request.end_ids, *request.stop_ids):
        if not 0 <= token < limits.vocab_size:
            raise PlanError(f"{who}: end and stop ids must be 0 .. {limits.vocab_size - 1}, got {token}")
    if not 0 <= request.adapter <= len(limits.adapters):
        raise PlanError(f"{who}: adapter must be 0 .. {len(limits.adapters)}, got {request.adapter}")
    blocks = worst_case_blocks(request, limits.block_size)
    if blocks > limits.block_count:
        raise PlanError(f"{who}: needs up to {blocks} blocks, the executor has {limits.block_count}")


def refuse_unoffered(request: ExecutorRequest) -> None:
    """For executors that have neither adapters nor retention nor stop sequences of several tokens. Raises PlanError naming the field."""
    for field in ("stop_sequences", "adapter", "retention"):
        if getattr(request, field):
            raise PlanError(f"request {request.request}: {field} is not offered by this executor; leave it unset")
