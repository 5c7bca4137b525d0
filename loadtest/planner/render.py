"""A plan as text, and as the configuration file that it asks for."""

from __future__ import annotations

from loadtest.planner.memory import MemoryBill
from loadtest.planner.plan import Plan
from loadtest.planner.verify import Check
from loadtest.table import milliseconds

GIB = 1 << 30


def gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def bill_lines(bill: MemoryBill, tp: int) -> list[str]:
    of = f" (all {tp} devices)" if tp > 1 else ""
    return [
        f"  memory            {gib(bill.total)}{of}",
        f"  usable            {gib(bill.usable)}  ({bill.usable / bill.total:.0%})",
        f"  weights         - {gib(bill.weights)}",
        f"  activations     - {gib(bill.workspace)}",
        f"  keys and values = {gib(bill.kv)}  ({bill.kv_per_token / 1024:.0f} KiB a token: {bill.tokens} tokens)",
    ]


def text(plan: Plan) -> str:
    """For a terminal."""
    chosen, service = plan.chosen, plan.service
    lines = [
        f"{plan.model} ({plan.parameters / 1e9:.2f} billion parameters) on {plan.device}",
        (
            f"{plan.rate:.2f} requests/s of {plan.prompt_mean:.0f} prompt and {plan.output_mean:.0f} output tokens, {plan.cached_share:.0%} "
            f"of prompt tokens shared; {plan.attainment:.0%} must keep {plan.slo}"
        ),
        "",
        f"{chosen.replicas} replica{'s' if chosen.replicas > 1 else ''} of {chosen.tp} device{'s' if chosen.tp > 1 else ''}",
        *(f"  {sentence}" for sentence in plan.why),
        "",
        "Memory of one replica",
        *bill_lines(chosen.bill, chosen.tp),
        f"  sequences that fit at once: {plan.sequences_mean} of mean length, {plan.sequences_p95} of the 95th percentile's",
        "",
        "What each context length costs",
        *(
            f"  {each.context:>7} tokens  {gib(each.kv_bytes):>10} a sequence  {each.sequences:>5} fit"
            for each in plan.contexts
        ),
        "",
        "One replica at its share of the load (estimated)",
        f"  load {service.load:.0%}, {service.running:.1f} sequences in a step of {milliseconds(service.step)} ms",
        f"  first token {milliseconds(service.ttft_p50)} ms (median), {milliseconds(service.ttft_p95)} ms (p95)",
        f"  whole request {service.latency_mean:.2f} s (mean), {service.latency_p95:.2f} s (p95)",
        f"  all replicas together: {plan.in_service:.1f} requests in service (rate x latency)",
        "",
        f"Clients should give up after {plan.settings.client_timeout:.0f} s (three times the 95th percentile).",
        "",
        f"Step times: {plan.profile.machine}; within {plan.profile.relative_error:.0%}.",
    ]
    return "\n".join(lines) + "\n"


def checked(check: Check) -> str:
    """What the simulator said of it."""
    return (
        f"The simulator (the real scheduler, these settings) finds {check.capacity:.2f} requests/s for one replica, "
        f"{check.low:.2f} to {check.high:.2f}; the estimate of {check.estimated:.2f} is {check.ratio:.0%} of it.\n"
    )


def configuration(plan: Plan) -> str:
    """The server's settings of one replica, as TOML."""
    settings = plan.settings
    return f"""\
# Made by `firsttoken plan`: {plan.model} on {plan.chosen.tp} x {plan.device}, one of {plan.chosen.replicas} replicas, for
# {plan.rate:.2f} requests/s in all; {plan.attainment:.0%} of them keep {plan.slo}.

[engine]
kv_bytes = {settings.kv_bytes}

[scheduler]
# Twice the mean batch.
max_sequences = {settings.max_sequences}
# What a step can take without breaking the time per token.
step_tokens = {settings.step_tokens}

[admission]
# Prompt tokens that are computed within the time to first token: who would wait longer is told at once.
max_waiting_tokens = {settings.max_waiting_tokens}
max_waiting_requests = {settings.max_waiting_requests}
"""
