"""A plot as inline SVG: lines, steps and points over two axes, marked places, a legend."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from loadtest.report.scale import Scale, fit, tick_label

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 26, 42
SERIES_COLOURS = 6


class Series(msgspec.Struct, frozen=True):
    """``kind`` is "line" (with dots), "curve" (without), "step" or "points"."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    kind: str = "line"


class Mark(msgspec.Struct, frozen=True):
    """A vertical (``x``) or horizontal (``y``) line with a word."""

    text: str
    x: float | None = None
    y: float | None = None


class Plot(msgspec.Struct, frozen=True):
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    log_x: bool = False
    log_y: bool = False

    def svg(self) -> str:
        """The plot as an SVG element."""
        across = [value for each in self.series for value in each.xs] + [m.x for m in self.marks if m.x is not None]
        up = [value for each in self.series for value in each.ys] + [m.y for m in self.marks if m.y is not None]
        x = fit(across, LEFT, WIDTH - RIGHT, log=self.log_x, zero=not self.log_x)
        y = fit(up, HEIGHT - BOTTOM, TOP, log=self.log_y, zero=not self.log_y)
        body = [*self._axes(x, y), *self._marks(x, y)]
        for number, series in enumerate(self.series):
            body += _draw(series, number % SERIES_COLOURS, x, y)
        body += self._legend()
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
            f"<title>{escape(self.title)}</title>{''.join(body)}</svg>"
        )

    def _axes(self, x: Scale, y: Scale) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts: list[str] = []
        for value in y.ticks(5):
            at = y.place(value)
            parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
            parts.append(
                f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick_label(value)}</text>'
            )
        for value in x.ticks(8):
            at = x.place(value)
            parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
            parts.append(
                f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick_label(value)}</text>'
            )
        parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        middle = (LEFT + right) / 2
        parts.append(
            f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(self.x_label)}</text>'
        )
        parts.append(
            f'<text class="label" transform="translate(13 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y_label)}</text>"
        )
        return parts

    def _marks(self, x: Scale, y: Scale) -> list[str]:
        parts: list[str] = []
        for mark in self.marks:
            if mark.x is not None:
                at = x.place(mark.x)
                parts.append(f'<path class="mark" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
                end = "end" if at > WIDTH * 0.7 else "start"
                shift = -4 if end == "end" else 4
                parts.append(
                    f'<text class="marked" x="{at + shift:.1f}" y="{TOP + 12}" text-anchor="{end}">{escape(mark.text)}</text>'
                )
            elif mark.y is not None:
                at = y.place(mark.y)
                parts.append(f'<path class="mark" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
                parts.append(f'<text class="marked" x="{LEFT + 4}" y="{at - 4:.1f}">{escape(mark.text)}</text>')
        return parts

    def _legend(self) -> list[str]:
        parts: list[str] = []
        at = float(LEFT)
        for number, series in enumerate(self.series):
            colour = number % SERIES_COLOURS
            parts.append(f'<path class="s{colour}" d="M{at:.0f} 12h16"/>')
            parts.append(f'<text class="tick" x="{at + 20:.0f}" y="16">{escape(series.name)}</text>')
            at += 34 + 6.3 * len(series.name)
        return parts


def _draw(series: Series, colour: int, x: Scale, y: Scale) -> list[str]:
    places = [
        (x.place(a), y.place(b))
        for a, b in zip(series.xs, series.ys, strict=True)
        if not (x.log and a <= 0) and not (y.log and b <= 0)
    ]
    if not places:
        return []
    dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
    if series.kind == "points":
        return [f'<path class="p{colour}" d="{dots}"/>']
    if series.kind == "step":
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in places[1:])
    else:
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    parts = [f'<path class="s{colour}" d="{path}"/>']
    return [*parts, f'<path class="d{colour}" d="{dots}"/>'] if series.kind == "line" else parts
