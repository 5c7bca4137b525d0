"""The batcher's knobs, and the check of them against the engine's limits."""

from __future__ import annotations

from dataclasses import dataclass

from engines.contract import RunnerLimits

ORDERS = ("aged", "arrival")
BUDGETS = ("adaptive", "fixed")
EVICTIONS = ("reuse", "cost", "lru")
_NOT_NEGATIVE = (
    "long_prompt_tokens",
    "max_prefix_waits",
    "batch_wait",
    "length_weight",
    "target_per_token",
    "tenant_burst",
    "max_preemptions",
    "preemptions_per_second",
    "max_retention",
)


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    """Every default suits an interactive server."""

    max_sequences: int = 64
    """Seats: sequences that hold KV blocks at once. Each costs one row a step, so more seats mean more throughput and slower steps."""
    step_tokens: int = 512
    """New tokens in one step at most, decodes and prefill chunks together. Larger steps finish prompts sooner and stretch the gaps of
    those who are already streaming."""
    budget: str = "adaptive"
    """"adaptive": chunks as large as ``itl_target`` allows, by a model of what steps cost on this machine; "fixed": always up to
    ``step_tokens``."""
    itl_target: float = 0.05
    """Seconds between two tokens of a stream that prompts may stretch a step to ..."""
    itl_stretch: float = 2.0
    """... or this many times what the step takes without prompts, where that is more ..."""
    itl_limit: float = 0.3
    """... or up to so many, where at that pace the prompts ahead would not be through within half of ``interactive_target``."""
    idle_step: float = 1.0
    """Seconds of a step while nobody streams: who comes meanwhile waits for its end."""
    order: str = "aged"
    """"aged": by due time and expected work; "arrival": first come, first served."""
    length_weight: float = 2.0
    """Seconds of later arrival that a second of expected work is worth."""
    interactive_target: float = 0.5
    """Seconds in which a first token is due, by class ..."""
    standard_target: float = 2.0
    batch_target: float = 60.0
    target_per_token: float = 0.0
    """... and so much more for each prompt token that must be computed."""
    length_quantile: float = 0.5
    """Quantile of the answers seen that an answer is expected to have."""
    standard_share: float = 0.2
    """Minimum share of the tokens of each step, while there is work of the class."""
    batch_share: float = 0.05
    fair_tenants: bool = True
    """Within a class serve tenants by what they were served so far."""
    tenant_burst: float = 4096.0
    """Weighted tokens by which a tenant that comes back after a pause may go before its turn."""
    max_preemptions: int = 2
    """Times that a request gives way to a higher class."""
    preemptions_per_second: float = 10.0
    """Of all requests together. 0 = no request gives way."""
    min_prefill_tokens: int = 16
    """What prompts get of a step even when decodes have used ``step_tokens`` up: the floor that guarantees progress."""
    max_partial_prefills: int = 4
    """Unfinished prompts that may share a step."""
    long_prompt_tokens: int = 2048
    """A prompt with more than this left to compute takes only its share (1 / max_partial_prefills) of the prefill budget while
    others wait, so that short prompts pass it. What nobody else wants it still gets."""
    min_copy_tokens: int = 4
    """Reuse a partly matching block by copying it where at least this many tokens are saved: below, the copy costs more."""
    max_score_tokens: int = 128
    """Prompt tokens of one request whose log-probabilities are computed in one step: each takes a row of logits, a whole vocabulary."""
    max_prefix_waits: int = 4
    """Steps in a row that a prompt lets pass, without getting further, while another computes the block that it needs next."""
    watermark: float = 0.01
    """Share of the blocks that stays free for running sequences when a new one is seated, so that seating causes no preemption."""

    prefix_cache: bool = True
    """Reuse computed prefixes. False: every prompt, and each of a request's n outputs, is computed anew."""
    eviction: str = "reuse"
    """Which cached block goes first: "reuse": the one used longest ago, but what was reused often stays longer; "cost": so does what costs
    more to compute again; "lru"."""
    max_retention: float = 3600.0
    """Seconds that a request's wish about the priority of its blocks lasts at most."""
    batch_size: int = 8
    """While others stream, new prompts are held back until so many wait ..."""
    batch_wait: float = 0.0
    """... or the next of them has waited so many seconds. 0 = nobody is held back."""

    @property
    def class_shares(self) -> tuple[float, float, float]:
        return 0.0, self.standard_share, self.batch_share

    @property
    def targets(self) -> tuple[float, float, float]:
        return self.interactive_target, self.standard_target, self.batch_target

    def checked(self, limits: RunnerLimits) -> BatcherConfig:
        """Raises ValueError, naming both values, where the knobs contradict each other or what the engine can do."""
        for name in (
            "max_sequences",
            "step_tokens",
            "min_prefill_tokens",
            "max_partial_prefills",
            "min_copy_tokens",
            "batch_size",
            "max_score_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        self._check_policies()
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark must be in [0, 1), not {self.watermark}")
        if self.max_sequences > limits.max_rows:
            raise ValueError(
                f"max_sequences is {self.max_sequences}, but the engine takes {limits.max_rows} rows a step"
            )
        if self.step_tokens > limits.max_step_tokens:
            raise ValueError(f"step_tokens is {self.step_tokens}, but the engine takes {limits.max_step_tokens} a step")
        if self.max_sequences + self.min_prefill_tokens > limits.max_step_tokens:
            raise ValueError(
                f"max_sequences ({self.max_sequences}) + min_prefill_tokens ({self.min_prefill_tokens}) exceed the "
                f"{limits.max_step_tokens} tokens that the engine takes a step"
            )
        check_capacity(limits)
        return self

    def _check_policies(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {self.order!r}")
        if self.eviction not in EVICTIONS:
            raise ValueError(f"eviction must be one of {', '.join(EVICTIONS)}, not {self.eviction!r}")
        if self.budget not in BUDGETS:
            raise ValueError(f"budget must be one of {', '.join(BUDGETS)}, not {self.budget!r}")
        if not 0.0 < self.length_quantile < 1.0:
            raise ValueError(f"length_quantile must be in (0, 1), not {self.length_quantile}")
        if min(self.itl_target, self.itl_limit, self.idle_step) <= 0.0 or self.itl_stretch < 1.0:
            raise ValueError(
                f"itl_target ({self.itl_target}), itl_limit ({self.itl_limit}) and idle_step ({self.idle_step}) must be above 0, "
                f"itl_stretch ({self.itl_stretch}) at least 1"
            )
        if self.standard_share < 0.0 or self.batch_share < 0.0 or self.standard_share + self.batch_share >= 1.0:
            raise ValueError(
                f"standard_share ({self.standard_share}) and batch_share ({self.batch_share}) must be at least 0 and together below 1"
            )


def check_capacity(limits: RunnerLimits) -> None:
    """A pool that cannot hold one sequence of maximal length would let such a request wait for ever: refuse it at start."""
    needed = -(-limits.max_context // limits.block_size)
    if limits.block_count < needed:
        raise ValueError(
            f"the KV pool has {limits.block_count} blocks, but one sequence of max_context {limits.max_context} tokens "
            f"needs {needed} blocks of {limits.block_size}"
        )
    if len(limits.kv_groups) != 1:
        raise ValueError(f"the batcher keeps one KV group; the engine has {len(limits.kv_groups)}")
