"""A result beside known models, as lines of text and as a picture."""

from typing import Final
from xml.sax.saxutils import escape

from classifier.measuring.result import Result

_WIDTH: Final = 40
_NAME: Final = 34
_ROW_PX: Final = 22
_LEFT_PX: Final = 250
_SCALE_PX: Final = 420


def ranked(result: Result) -> list[tuple[str, float, bool]]:
    """Return the known models and the target, best first: name, mean chance, and True for the target."""
    if result.mean is None:
        return []
    rows = [(each.name, each.mean, False) for each in result.known]
    return sorted([*rows, (result.target_id, result.mean.value, True)], key=lambda each: (-each[1], each[0]))


def bars_of(result: Result) -> list[str]:
    """Return one line a model: a bar from 0 to 1, and the target's interval on its own."""
    lines = []
    for name, mean, is_target in ranked(result):
        bar = list("·" * _WIDTH)
        for at in range(round(mean * _WIDTH)):
            bar[at] = "█" if is_target else "▒"
        if is_target and result.mean is not None:
            for edge, sign in ((result.mean.low, "["), (result.mean.high, "]")):
                bar[min(_WIDTH - 1, int(edge * _WIDTH))] = sign
        shown = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
        lines.append(f"{'→' if is_target else ' '} {shown:<{_NAME}} {''.join(bar)} {mean:.3f}")
    return lines


def svg_of(result: Result) -> str:
    """Draw the ranking as SVG, without anything that has to be fetched."""
    rows = ranked(result)
    height = _ROW_PX * len(rows) + 60
    width = _LEFT_PX + _SCALE_PX + 70
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f"<title>{escape(result.target_id)} beside known models</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT_PX}" y="18">Mean chance of a right answer, by {result.scored} questions</text>',
    ]
    for tenth in range(0, 11, 2):
        x = _LEFT_PX + tenth / 10 * _SCALE_PX
        parts.append(f'<path d="M{x:.1f} 28V{height - 26}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" fill="#555">{tenth / 10:.1f}</text>')
    for at, (name, mean, is_target) in enumerate(rows):
        y = 40 + at * _ROW_PX
        x = _LEFT_PX + mean * _SCALE_PX
        weight = ' font-weight="bold"' if is_target else ""
        parts.append(f'<text x="{_LEFT_PX - 10}" y="{y + 4}" text-anchor="end"{weight}>{escape(name)}</text>')
        if is_target and result.mean is not None:
            low, high = (_LEFT_PX + edge * _SCALE_PX for edge in (result.mean.low, result.mean.high))
            parts.append(f'<path d="M{low:.1f} {y}H{high:.1f}" stroke="#b3261e" stroke-width="3"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{"#b3261e" if is_target else "#5f6b7a"}"/>')
        parts.append(f'<text x="{_LEFT_PX + _SCALE_PX + 12}" y="{y + 4}"{weight}>{mean:.3f}</text>')
    return "\n".join([*parts, "</svg>", ""])
