"""`firsttoken plan`: how much a load needs, before anything is bought or built."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadtest.planner.plan import Plan, Wanted
    from loadtest.planner.traffic import Traffic
    from loadtest.planner.verify import Check
    from loadtest.workload import Workload

HELP = "how many devices a load needs, how to use them, and how to set the server"
SAMPLED_SESSIONS = 5000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    from loadtest.options import add_workload_options

    _add_subject(parser)
    _add_promise(parser)
    _add_replica(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as a JSON object")
    parser.add_argument("--config-out", type=Path, metavar="FILE", help="write the server's configuration (TOML)")
    add_workload_options(parser)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", type=Path, help="a Hugging Face config.json, a checkpoint's directory, or an engine's"
    )
    parser.add_argument(
        "--device",
        default="H100-80GB",
        metavar="NAME",
        help="e.g. L40S, A100-80GB, H200, B200, or this: the machine that built the engine (%(default)s)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="plan for one of the simulator's engines instead: embedded, h100-8b-tp1, ... or a JSON file",
    )
    parser.add_argument("--no-check", action="store_true", help="leave out the check by the simulator")


def _add_promise(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slo",
        default="chat",
        metavar="SLO",
        help="e.g. ttft=200ms,itl=50ms (also e2e=), or chat, rag, code (%(default)s)",
    )
    parser.add_argument(
        "--attainment", type=float, default=0.9, metavar="SHARE", help="of requests that must keep it (%(default)s)"
    )
    parser.add_argument(
        "--headroom",
        type=float,
        default=0.4,
        metavar="SHARE",
        help="of each replica that stays free: 0.3 to 0.5 (%(default)s)",
    )


def _add_replica(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        choices=("bf16", "fp16", "fp8", "int8", "int4"),
        default="bf16",
        help="precision of the weights (%(default)s)",
    )
    parser.add_argument(
        "--kv", choices=("bf16", "fp16", "fp8"), default="bf16", help="precision of keys and values (%(default)s)"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="longest prompt and output together (default: the traffic's longest)"
    )
    parser.add_argument("--tp", type=int, metavar="N", help="devices of a replica (default: the planner chooses)")
    parser.add_argument(
        "--max-sequences", type=int, default=256, metavar="N", help="seats of a replica, at most (%(default)s)"
    )
    parser.add_argument(
        "--memory-share",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="of a device's memory that can be counted on (%(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0, or 2 for what cannot be or what the user must change."""
    from build_scripts.errors import BuildError
    from loadtest.errors import LoadError
    from loadtest.planner.traffic import read_traffic

    try:
        workload, wanted = _workload(arguments), _wanted(arguments)
        traffic = read_traffic(workload)
        plan = _plan(arguments, traffic, wanted)
        check = None if arguments.no_check else _check(plan, wanted, workload, traffic)
    except (LoadError, BuildError) as error:
        sys.stderr.write(f"firsttoken plan: {error}\n")
        return 2
    _say(arguments, plan, check)
    return 0


def _plan(arguments: argparse.Namespace, traffic: Traffic, wanted: Wanted) -> Plan:
    from build_scripts.devices import find_device
    from loadtest.errors import WorkloadError
    from loadtest.planner import verify
    from loadtest.planner.machine import machine_bill, read_manifest
    from loadtest.planner.model import from_manifest, read_model
    from loadtest.planner.plan import Planner
    from loadtest.simulation.profile import read_profile

    if arguments.profile is not None:
        profile = read_profile(arguments.profile)
        planner = Planner(verify.profile_model(profile), traffic, wanted)
        return planner.measured(profile.name, verify.profile_bill(profile), verify.profile_steps(profile))
    if arguments.model is None:
        raise WorkloadError("model: give a config.json, a checkpoint or an engine (or --profile)")
    if arguments.device != "this":
        return Planner(read_model(arguments.model), traffic, wanted).on_device(find_device(arguments.device))
    manifest = read_manifest(arguments.model)
    planner = Planner(from_manifest(manifest), traffic, wanted)
    return planner.measured("this machine", machine_bill(manifest), manifest.profile)


def _check(plan: Plan, wanted: Wanted, workload: Workload, traffic: Traffic) -> Check:
    from loadtest.planner.verify import check_plan

    sys.stderr.write("checking one replica with the simulator (--no-check leaves it out) ...\n")
    return check_plan(plan, wanted, workload, traffic)


def _workload(arguments: argparse.Namespace) -> Workload:
    from loadtest.errors import WorkloadError
    from loadtest.options import make_workload

    if arguments.concurrency is not None:
        raise WorkloadError("--concurrency: a plan needs a rate")
    if arguments.rate is None and arguments.ramp is None and arguments.trace is None:
        raise WorkloadError("--rate: a plan needs requests per second (or a --trace with its own)")
    if arguments.duration is None and arguments.requests is None and arguments.trace is None:
        arguments.requests = SAMPLED_SESSIONS
    return make_workload(arguments)


def _wanted(arguments: argparse.Namespace) -> Wanted:
    from loadtest.planner.plan import Wanted
    from loadtest.slo import parse_slo

    wanted = Wanted(
        slo=parse_slo(arguments.slo),
        attainment=arguments.attainment,
        headroom=arguments.headroom,
        weights=arguments.weights,
        kv=arguments.kv,
        context=arguments.context,
        max_sequences=arguments.max_sequences,
        tp=arguments.tp,
        usable=arguments.memory_share,
    )
    wanted.check()
    return wanted


def _say(arguments: argparse.Namespace, plan: Plan, check: Check | None) -> None:
    import msgspec

    from loadtest.planner import render

    if arguments.config_out is not None:
        arguments.config_out.write_text(render.configuration(plan))
    if arguments.json:
        said = msgspec.to_builtins(plan) | {"check": msgspec.to_builtins(check)}
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
        return
    sys.stdout.write(render.text(plan) + (render.checked(check) if check is not None else ""))
    if arguments.config_out is None:
        sys.stdout.write(
            "\nConfiguration of each replica (--config-out FILE writes it):\n\n" + render.configuration(plan)
        )
