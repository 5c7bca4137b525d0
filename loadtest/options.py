"""The options of `firsttoken load`, and the workload and target that they make."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from loadtest.arrivals import Arrivals, constant_rate, parse_burstiness, parse_ramp
from loadtest.distributions import parse_distribution
from loadtest.errors import WorkloadError
from loadtest.http2.pool import Security
from loadtest.slo import parse_seconds
from loadtest.traces import read_trace
from loadtest.transports.base import Target
from loadtest.transports.choose import WIRES
from loadtest.workload import Behaviour, Lengths, SharedPrefix, TraceUse, Turns, Workload


def add_target_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to")
    group.add_argument(
        "address",
        nargs="?",
        default="127.0.0.1:50051",
        help="host:port, unix:PATH, or a URL for openai (default: %(default)s)",
    )
    group.add_argument("--wire", choices=WIRES, default="native", help="protocol to speak (default: %(default)s)")
    group.add_argument("--model", default="", help="model to ask for, where the server has several")
    group.add_argument(
        "--endpoint", default="", help="openai: completions (the default) or chat; kserve: text (the default) or tokens"
    )
    group.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="the model's tokenizer.json: for wires that take text, so that prompts have exact lengths",
    )
    group.add_argument("--send-text", action="store_true", help="send text where token ids would do")
    group.add_argument(
        "--connections", type=int, default=1, metavar="N", help="connections of each process (default: %(default)s)"
    )
    group.add_argument("--processes", type=int, default=1, metavar="N", help="client processes (default: %(default)s)")
    group.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="send this header, e.g. authorization=Bearer …; repeatable",
    )
    group.add_argument(
        "--tls",
        action="store_true",
        help="encrypt; with --tls-ca FILE trust that authority, with --tls-cert and --tls-key show a certificate",
    )
    for name in ("ca", "cert", "key"):
        group.add_argument(f"--tls-{name}", metavar="FILE", help=argparse.SUPPRESS)


def make_target(arguments: argparse.Namespace) -> Target:
    """Raises WorkloadError."""
    if arguments.processes < 1 or arguments.connections < 1:
        raise WorkloadError("--processes and --connections: must be at least 1")
    security = Security(arguments.tls, arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    return Target(
        wire=arguments.wire,
        address=arguments.address,
        model=arguments.model,
        connections=arguments.connections,
        security=security,
        headers=parse_pairs(arguments.header, "--header"),
        endpoint=arguments.endpoint,
        tokenizer=arguments.tokenizer,
        send_text=arguments.send_text,
    )


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when requests come")
    group.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="requests per second, open loop; with --trace, its clock runs so that this is its mean",
    )
    group.add_argument(
        "--ramp",
        metavar="RAMP",
        help="a rate that changes: 2..20 over the duration, 2..20:60 over 60 s, 2,4,8:30 for 30 s each",
    )
    group.add_argument(
        "--arrivals",
        metavar="KIND",
        help="poisson (the default), constant, or a burstiness: 1 = poisson, less = burstier",
    )
    group.add_argument("--concurrency", type=int, metavar="N", help="closed loop: N sessions at any time")
    group.add_argument("--duration", type=float, metavar="S", help="seconds in which sessions start")
    group.add_argument("--requests", type=int, metavar="N", help="sessions to start, at most")
    group.add_argument(
        "--warmup", type=float, default=0.0, metavar="S", help="leave out what is sent in the first S seconds"
    )
    group.add_argument(
        "--drain",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds that the last requests have to finish (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, help="equal seeds give equal workloads (default: %(default)s)")
    _add_content_options(parser)
    _add_behaviour_options(parser)


def _add_content_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what they ask")
    group.add_argument(
        "--prompt-tokens",
        default="256",
        metavar="DIST",
        help="a number, or lognormal:mean=512,cv=1,max=2048, uniform:low=,high=, normal:mean=,sd=, exponential:mean=, gamma:mean=,cv=, choice:128=0.5,512=0.5, values:FILE (default: %(default)s)",
    )
    group.add_argument("--output-tokens", default="64", metavar="DIST", help="likewise (default: %(default)s)")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="lengths, times and prefixes of recorded traffic: Azure CSV, Mooncake JSONL, or a recording of firsttoken's",
    )
    group.add_argument("--speedup", type=float, metavar="X", help="the trace's clock runs X times faster")
    group.add_argument("--scale-lengths", type=float, default=1.0, metavar="X", help="factor on the trace's lengths")
    group.add_argument(
        "--prompts", metavar="FILE", help='JSON lines with "text" or "token_ids", and perhaps "max_tokens"'
    )
    group.add_argument(
        "--prefix", type=int, default=0, metavar="N", help="every session starts with the same N tokens …"
    )
    group.add_argument("--prefix-groups", type=int, default=1, metavar="N", help="… as the others of one of N groups")
    group.add_argument(
        "--turns", default="1", metavar="DIST", help="turns of a conversation; each sends all before it again"
    )
    group.add_argument("--think", default="0", metavar="DIST", help="seconds between an answer and the next turn")
    group.add_argument("--allow-early-end", action="store_true", help="let the model end its answers where it likes")


def _add_behaviour_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("who asks, and how patiently")
    group.add_argument(
        "--classes", default="interactive", metavar="MIX", help="e.g. interactive=0.8,batch=0.2 (default: %(default)s)"
    )
    group.add_argument(
        "--tenants",
        default="",
        metavar="MIX",
        help="a number of equal tenants, or a=0.9,b=0.1; each has a cache salt of its own",
    )
    group.add_argument("--ttft-deadline", metavar="TIME", help="the server must give the first token within this time")
    group.add_argument("--deadline", metavar="TIME", help="the whole request must be over within this time")
    group.add_argument(
        "--cancel-rate", type=float, default=0.0, metavar="SHARE", help="share of requests that the client gives up …"
    )
    group.add_argument(
        "--cancel-after",
        default="uniform:low=0,high=2",
        metavar="DIST",
        help="… so many seconds after sending (default: %(default)s)",
    )
    group.add_argument(
        "--stall-rate", type=float, default=0.0, metavar="SHARE", help="share of requests whose client stops reading"
    )


def make_workload(arguments: argparse.Namespace) -> Workload:
    """Raises WorkloadError, or TraceError."""
    workload = Workload(
        seed=arguments.seed,
        arrivals=_arrivals(arguments),
        concurrency=arguments.concurrency,
        requests=arguments.requests,
        duration=arguments.duration,
        warmup=arguments.warmup,
        drain=arguments.drain,
        lengths=Lengths(
            parse_distribution(arguments.prompt_tokens, "--prompt-tokens"),
            parse_distribution(arguments.output_tokens, "--output-tokens"),
        ),
        prefix=SharedPrefix(arguments.prefix, arguments.prefix_groups),
        turns=Turns(parse_distribution(arguments.turns, "--turns"), parse_distribution(arguments.think, "--think")),
        trace=_trace(arguments),
        prompts=arguments.prompts,
        classes=parse_mix(arguments.classes, "--classes"),
        tenants=_tenants(arguments.tenants),
        behaviour=_behaviour(arguments),
        ignore_end=not arguments.allow_early_end,
    )
    workload.check()
    return workload


def _arrivals(arguments: argparse.Namespace) -> Arrivals | None:
    burstiness = parse_burstiness(arguments.arrivals or "poisson")
    if arguments.ramp is not None:
        if arguments.rate is not None:
            raise WorkloadError("--rate and --ramp both say how many come: give one")
        return Arrivals(parse_ramp(arguments.ramp, arguments.duration), burstiness)
    if arguments.rate is None:
        return None
    if arguments.trace is not None and arguments.arrivals is None:
        return None  # the trace's own times, sped up to this rate
    return Arrivals(constant_rate(arguments.rate), burstiness)


def _trace(arguments: argparse.Namespace) -> TraceUse | None:
    if arguments.trace is None:
        return None
    synthetic = arguments.concurrency is not None or arguments.ramp is not None or arguments.arrivals is not None
    speedup = 1.0 if arguments.speedup is None else arguments.speedup
    if not synthetic and arguments.rate is not None:
        if arguments.speedup is not None:
            raise WorkloadError("--rate and --speedup both set the trace's clock: give one")
        speedup = arguments.rate / read_trace(Path(arguments.trace)).rate
    return TraceUse(str(arguments.trace), not synthetic, speedup, arguments.scale_lengths)


def _behaviour(arguments: argparse.Namespace) -> Behaviour:
    def seconds(text: str | None, option: str) -> float | None:
        return None if text is None else parse_seconds(text, option)

    return Behaviour(
        ttft_deadline=seconds(arguments.ttft_deadline, "--ttft-deadline"),
        deadline=seconds(arguments.deadline, "--deadline"),
        cancel_rate=arguments.cancel_rate,
        cancel_after=parse_distribution(arguments.cancel_after, "--cancel-after"),
        stall_rate=arguments.stall_rate,
    )


def _tenants(text: str) -> dict[str, float]:
    if text.isdigit():
        return {f"tenant-{number}": 1.0 for number in range(int(text))}
    return parse_mix(text, "--tenants") if text else {}


def parse_mix(text: str, option: str) -> dict[str, float]:
    """Read ``a=0.8,b=0.2``; a name alone weighs 1. Raises WorkloadError."""
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.partition("=")
        try:
            mix[name.strip()] = float(weight) if equals else 1.0
        except ValueError:
            raise WorkloadError(f"{option}: {weight!r} is no weight") from None
    return mix


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Read NAME=VALUE. Raises WorkloadError."""
    if bad := [pair for pair in pairs if "=" not in pair]:
        raise WorkloadError(f"{option}: {bad[0]!r} is not NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
