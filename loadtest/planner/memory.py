"""The memory bill: what of a device is left for keys and values, and how many sequences fit."""

from __future__ import annotations

import math

import msgspec

from loadtest.planner.model import KV_BYTES, PlannedModel

USABLE = 0.9
"""Share of a device's memory that a server can count on: the driver, the context and fragmentation take the rest."""


class MemoryBill(msgspec.Struct, frozen=True):
    """Bytes of one replica, all its devices together."""

    total: int
    usable: int
    weights: int
    workspace: int
    """Activations of one full step."""
    kv: int
    """Left for keys and values; 0 or less: the model does not fit."""
    kv_per_token: int
    """Of one token, all layers, no window counted."""

    @property
    def tokens(self) -> int:
        """Tokens whose keys and values fit."""
        return max(0, self.kv) // self.kv_per_token


class ContextCost(msgspec.Struct, frozen=True):
    """What a context length costs."""

    context: int
    kv_bytes: int
    """Of one sequence of that length."""
    sequences: int
    """Such sequences that fit at once."""


def kv_left(total: float, usable: float, weights: float, workspace: float = 0.0) -> float:
    """What is left for keys and values, in the unit given."""
    return total * usable - weights - workspace


def draw_up(
    model: PlannedModel, memory: int, tp: int, *, weights: str, kv: str, step_tokens: int, usable: float = USABLE
) -> MemoryBill:
    """The bill of one replica over ``tp`` devices of ``memory`` bytes. Weights and KV heads are split over them; a model with
    fewer KV heads than devices keeps copies."""
    copies = max(1, tp // model.kv_heads) if tp > model.kv_heads else 1
    weight_bytes = model.weight_bytes(weights)
    workspace = workspace_bytes(model, step_tokens) * tp
    return MemoryBill(
        total=memory * tp,
        usable=int(memory * tp * usable),
        weights=weight_bytes,
        workspace=workspace,
        kv=int(kv_left(memory * tp, usable, weight_bytes, workspace)),
        kv_per_token=2 * model.layers * model.kv_heads * model.head_dim * KV_BYTES[kv] * copies,
    )


def workspace_bytes(model: PlannedModel, step_tokens: int) -> int:
    """Activations of one step on one device: the residual stream, queries, keys and values, and a feed-forward four times as
    wide, in 16 bits. An upper bound that needs no library."""
    per_token = 2 * model.hidden + (model.heads + 2 * model.kv_heads) * model.head_dim + 8 * model.hidden
    return 2 * step_tokens * per_token


def context_costs(model: PlannedModel, bill: MemoryBill, longest: int) -> list[ContextCost]:
    """Each doubling up to the longest context, from an eighth of it."""
    costs = []
    for length in sorted({max(1, longest >> shift) for shift in range(4)}):
        one = math.ceil(bill.kv_per_token * model.kept_tokens(length))
        costs.append(ContextCost(length, one, max(0, bill.kv) // one))
    return costs
