"""A view as a terminal shows it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from firsttoken.top.view import CLASSES, PARTS, Spread, View

NOTHING = "-"


def screen(view: View) -> RenderableType:
    """What is missing is a dash; why it is missing stands below."""
    parts: list[RenderableType] = [_headline(view)]
    if view.reachable:
        parts += [_shares(view), _classes(view), _steps(view), _rates(view)]
    parts += [Text(error, style="yellow") for error in view.errors]
    return Group(*parts)


def _headline(view: View) -> Text:
    if not view.reachable:
        return Text(f"firsttoken at {view.address}: away", style="bold red")
    state = {True: ("ready", "bold green"), False: ("not ready", "bold red"), None: ("", "bold")}[view.ready]
    return Text.assemble(
        (f"firsttoken at {view.address}  ", "bold"),
        state,
        f"  running {_count(view.running)}  streams {_count(view.open_streams)}"
        f"  prompt tokens to compute {_count(view.waiting_tokens)}",
    )


def _shares(view: View) -> Table:
    table = Table.grid(padding=(0, 1))
    shares = {
        "engine busy": view.busy,
        "KV in use": view.kv_utilisation,
        "KV cached": view.kv_cached,
        "prefix hits": view.hit_rate,
        **{f"GPU {number}": share for number, share in view.devices.items()},
    }
    for name, share in shares.items():
        bar = ProgressBar(total=1.0, completed=share or 0.0, width=30)
        table.add_row(name, bar, NOTHING if share is None else f"{share:.0%}")
    return table


def _classes(view: View) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("class", "waiting", "TTFT p50", "p95", "gap p50", "p95"):
        table.add_column(title, justify="left" if title == "class" else "right")
    for name in CLASSES:
        first, gap = view.first_token.get(name), view.gap.get(name)
        table.add_row(name, _count(view.waiting.get(name)), *_spread(first), *_spread(gap))
    return table


def _steps(view: View) -> Text:
    split = "  ".join(f"{part} {_time(view.step_seconds.get(part))}" for part in PARTS)
    return Text(f"steps/s {_rate(view.steps_per_second)}  a step: {split}")


def _rates(view: View) -> Text:
    line = f"tokens/s {_rate(view.tokens_per_second)}  through the model {_rate(view.computed_per_second)}"
    for name, rate in view.outcomes_per_second.items():
        line += f"  {name} {_rate(rate)}/s"
    refused = {reason: rate for reason, rate in view.rejections_per_second.items() if rate}
    if refused:
        line += "\nrefused: " + "  ".join(f"{reason} {_rate(rate)}/s" for reason, rate in refused.items())
    return Text(line)


def _spread(spread: Spread | None) -> tuple[str, str]:
    return (NOTHING, NOTHING) if spread is None else (_time(spread.p50), _time(spread.p95))


def _count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def _rate(rate: float | None) -> str:
    return NOTHING if rate is None else f"{rate:,.1f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
