"""What a run's figures say, in words: which of the client, the scheduler, the KV cache or the computation set the limit."""

from __future__ import annotations

from enum import Enum

import msgspec

from loadtest.summary import ServerLoad, Summary

KV_FULL = 0.9
SEATS_FULL = 0.9
QUEUE_SHOWS = 0.5
"""A mean of this many waiting requests is a queue."""
LATE = 0.02


class Bound(Enum):
    """Where the limit lies."""

    CLIENT = "client-bound"
    KV = "KV-bound"
    SCHEDULING = "scheduling-bound"
    COMPUTE = "compute-bound"
    NONE = "not at its limit"
    UNKNOWN = "unknown"


class Conclusion(msgspec.Struct, frozen=True):
    bound: Bound
    sentences: tuple[str, ...]


def conclude(summary: Summary) -> Conclusion:
    """Read one run. The order matters: a client that was late makes every other reading worthless."""
    if sentences := client_limits(summary):
        return Conclusion(
            Bound.CLIENT, (*sentences, "Use more --processes, or another machine, before believing the rest.")
        )
    if summary.server is None:
        return Conclusion(
            Bound.UNKNOWN,
            ("The server does not tell its load over this wire, so its limit cannot be named from here.",),
        )
    return _of_server(summary, summary.server)


def client_limits(summary: Summary) -> list[str]:
    """Why the client may have measured itself; empty where it was fast enough."""
    found = [
        f"Client process {number} used {health.processor_share:.0%} of a core and woke late by {health.loop_lag_p99 * 1e3:.1f} ms "
        f"(99th percentile): it adds its own delay to every figure."
        for number, health in enumerate(summary.clients)
        if health.limiting
    ]
    if summary.lag is not None and summary.lag.p99 > LATE:
        found.append(f"Requests were sent {summary.lag.p99 * 1e3:.1f} ms late (99th percentile).")
    return found


def _of_server(summary: Summary, load: ServerLoad) -> Conclusion:
    seats = summary.facts.max_sequences
    queue = f"{load.waiting_mean:.1f} requests waited on average, {load.waiting_max} at most"
    grows = load.waiting_growth > 0.01 * summary.offered_rate and load.waiting_max > 10 * QUEUE_SHOWS
    warning = ("The queue grew all the time and did not fall back: this rate cannot be held.",) if grows else ()
    if load.waiting_mean < QUEUE_SHOWS:
        return Conclusion(Bound.NONE, (f"Hardly anything waited ({queue}): the server can carry more than this.",))
    if load.kv_mean >= KV_FULL:
        text = f"The KV cache was {load.kv_mean:.0%} full while {queue}: memory for keys and values is the limit."
        remedy = "A shorter context, a smaller KV precision, or more memory helps; a faster processor does not."
        return Conclusion(Bound.KV, (text, remedy, *warning))
    if seats is not None and load.running_mean >= SEATS_FULL * seats:
        text = f"All {seats} seats were taken while {queue}, and the KV cache was {load.kv_mean:.0%} full."
        remedy = "The seats are a setting (scheduler.max_sequences): raise it if the time between tokens has room, else add replicas."
        return Conclusion(Bound.SCHEDULING, (text, remedy, *warning))
    if seats is not None and load.running_mean < 0.5 * seats:
        text = f"{queue[0].upper()}{queue[1:]}, yet only {load.running_mean:.1f} of {seats} seats were taken and the KV cache was {load.kv_mean:.0%} full."
        remedy = "Prompts wait for computation, or the scheduler holds them back: see the time to first token against step_tokens."
        return Conclusion(Bound.COMPUTE if grows else Bound.SCHEDULING, (text, remedy, *warning))
    text = f"{queue[0].upper()}{queue[1:]}, with {load.running_mean:.1f} running and the KV cache {load.kv_mean:.0%} full: the computation is the limit."
    return Conclusion(Bound.COMPUTE, (text, "A faster device, a smaller model or more replicas helps.", *warning))
