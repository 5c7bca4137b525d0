"""The batcher's knobs, and the check of them against the engine's limits."""

from __future__ import annotations

from dataclasses import dataclass

from engines.contract import RunnerLimits


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    """Every default suits an interactive server."""

    max_sequences: int = 64
    """Seats: sequences that hold KV blocks at once. Each costs one row a step, so more seats mean more throughput and slower steps."""
    step_tokens: int = 512
    """New tokens in one step, decodes and prefill chunks together. Larger steps finish prompts sooner and stretch the gaps of
    those who are already streaming."""
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

    batch_size: int = 8
    """While others stream, new prompts are held back until so many wait ..."""
    batch_wait: float = 0.0
    """... or the next of them has waited so many seconds. 0 = nobody is held back."""

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
        for name in ("long_prompt_tokens", "max_prefix_waits"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.batch_wait < 0.0:
            raise ValueError(f"batch_wait must be at least 0, not {self.batch_wait}")
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
