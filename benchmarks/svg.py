"""Line charts as SVG text, without a library for plotting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, MARGIN = 460, 300, 50


@dataclass(frozen=True)
class Curve:
    """Values at 1, 2, ... of the horizontal axis; ``width`` of the line in pixels."""

    label: str
    values: Sequence[float]
    color: str
    width: float


def line_chart(
    charts: Sequence[tuple[str, Sequence[Curve]]], horizontal: str, vertical: str
) -> str:
    """Charts side by side, each with a title, axes from zero, and a legend."""
    size = f'width="{WIDTH * len(charts)}" height="{HEIGHT}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, curves) in enumerate(charts):
        lines.append(f'<g transform="translate({WIDTH * number} 0)">')
        lines += _chart(title, curves, horizontal, vertical)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _chart(title: str, curves: Sequence[Curve], horizontal: str, vertical: str) -> Iterator[str]:
    right, bottom = WIDTH - 20, HEIGHT - MARGIN
    count = max(len(curve.values) for curve in curves)
    top = max(max(curve.values) for curve in curves) * 1.05

    def place(step: int, value: float) -> str:
        x = MARGIN + (right - MARGIN) * step / count
        y = bottom - (bottom - MARGIN) * value / top
        return f"{x:.1f},{y:.1f}"

    yield f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-size="14">{title}</text>'
    yield f'<path d="M{MARGIN},{MARGIN} V{bottom} H{right}" fill="none" stroke="black"/>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{horizontal}</text>'
    yield f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})">{vertical}</text>'
    for k in range(5):
        x, y = place(count * k // 4, top * k / 4).split(",")
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{count * k // 4}</text>'
        yield f'<text x="{MARGIN - 6}" y="{y}" text-anchor="end">{top * k / 4:.1f}</text>'
    for k, curve in enumerate(curves):
        points = " ".join(place(step, value) for step, value in enumerate(curve.values, 1))
        style = f'stroke="{curve.color}" stroke-width="{curve.width}"'
        yield f'<polyline points="{points}" fill="none" {style}/>'
        y = MARGIN + 18 * k
        yield f'<path d="M{right - 90},{y} h24" {style}/>'
        yield f'<text x="{right - 60}" y="{y + 4}">{curve.label}</text>'
