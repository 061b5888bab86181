"""Output of an evaluation for people: a text table, and a folder with an HTML page and its figures."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from classifier.training.cascade import cascade_table, recorded
from classifier.training.evaluate import (
    LENGTH_ALONE,
    PRICES,
    PUBLISHED,
    ROUTELLM,
    Evaluation,
    Judged,
    Row,
    Target,
)
from classifier.training.splits import OWN

PAGE: Final = "report.html"
NUMBERS: Final = "report.json"
_NOTHING: Final = "-"

Table = tuple[list[str], list[list[str]]]


def _number(value: float | None, digits: int = 3) -> str:
    if value is None or value != value:  # noqa: PLR0124 - NaN is the one number that is not itself.
        return _NOTHING
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _percent(value: float | None) -> str:
    return _NOTHING if value is None or value != value else f"{100 * value:.1f} %"  # noqa: PLR0124 - as above


def _interval(row: Row) -> str:
    return f"{_number(row.apgr)} [{_number(row.lo)}, {_number(row.hi)}]"


def baseline_of(each: Judged) -> float | None:
    """Return the baseline's APGR on the same split; the shipped artifact is compared with ten folds. None where unknown."""
    if each.row.split == "leave-category-out":
        return each.pair.baseline_categories
    return each.pair.baseline if each.row.split in {"10-fold", "shipped"} else None


def goal_of(each: Judged) -> float | None:
    """Return the middle between baseline and ceiling; None where either is unknown."""
    baseline = baseline_of(each)
    return None if baseline is None or each.pair.ceiling is None else (baseline + each.pair.ceiling) / 2


def verdict(row: Row, number: float | None) -> str:
    """Return the row's APGR against a number in words; "clearly" when the number is outside of the interval."""
    if number is None:
        return _NOTHING
    if row.lo > number:
        return "clearly above"
    if row.hi < number:
        return "clearly below"
    return "above" if row.apgr > number else "below"


def main_table(found: Evaluation) -> Table:
    """Return every pair and split with its measures, beside the baselines."""
    head = ["pair", "split", "n", "APGR [95 %]", "CPT50 / 80", "baseline", "ours is", "half-way", "ceiling", "RouteLLM"]
    head += ["length", "saved at 95 / 98 / 100 %", "ms p50 / p99"]
    order = list(dict.fromkeys(each.pair.name for each in found.judged))
    rows = []
    for each in sorted(found.judged, key=lambda one: order.index(one.pair.name)):
        row, baseline = each.row, baseline_of(each)
        saved = " / ".join(_percent(value) for value in each.savings.values())
        facts = [row.pair, row.split, str(row.n), _interval(row), f"{row.cpt50:.1f} / {row.cpt80:.1f}"]
        beside = (goal_of(each), each.pair.ceiling, ROUTELLM.get(each.pair.source), LENGTH_ALONE.get(row.pair))
        known = [_number(baseline), verdict(row, baseline), *map(_number, beside)]
        rows.append([*facts, *known, saved or _NOTHING, f"{row.ms_p50:.2f} / {row.ms_p99:.2f}"])
    return head, rows


def money_table(found: Evaluation) -> Table:
    """Return savings and quality kept of the pairs with known prices, each at its best threshold, found afterwards."""
    judged = [each for each in found.judged if each.savings]
    head = ["pair", "split", *(f"saved at {share} quality" for share in ("95 %", "98 %", "100 %"))]
    head += [f"kept when {saved} is saved" for saved in ("30 %", "50 %", "70 %")]
    rows = []
    for each in judged:
        kept = [each.kept.get(saved) for saved in ("30%", "50%", "70%")]
        rows.append([each.row.pair, each.row.split, *map(_percent, [*each.savings.values(), *kept])])
    return head, rows


def target_table(found: Evaluation) -> Table:
    """Return the calibration of each target's probabilities."""
    head = ["target", "split", "n", "ECE", "Brier", "Brier of its mean", "log loss"]
    return head, [_target_row(each) for each in found.targets]


def _target_row(each: Target) -> list[str]:
    numbers = (each.found.ece, each.found.brier, each.found.base_brier, each.found.log_loss)
    return [each.model, each.split, str(each.found.n), *map(_number, numbers)]


def many_table(found: Evaluation) -> Table:
    """Return the routing among several targets, beside a random choice and each target alone."""
    head = ["split", "n", "who", "US$ / 1,000 prompts", "score", "area [95 %]", "least lead on random"]
    rows = []
    for each in found.many:
        mixed = each.found
        same = [each.split, str(mixed.n)]
        area = f"{_number(mixed.area)} [{_number(mixed.area_low)}, {_number(mixed.area_high)}]"
        rows.append([*same, "routed", "curve", "curve", area, _number(mixed.least_lead, 4)])
        rows.append([*same, "drawn at random", "curve", "curve", _number(mixed.random_area), _NOTHING])
        for name, cost, quality in zip(mixed.targets, mixed.single_cost, mixed.single_quality, strict=True):
            rows.append([*same, f"{name} alone", f"{cost / 1e6:.3f}", _number(float(quality)), _NOTHING, _NOTHING])
        rows.append([*same, "oracle", _NOTHING, _number(mixed.oracle), _NOTHING, _NOTHING])
    return head, rows


def promise_table(found: Evaluation) -> Table:
    """Return the quality floors with the predicted and the real outcome."""
    head = [
        "split",
        "n",
        "floor",
        "US$ / good answer",
        "score",
        "US$ / 1,000 prompts",
        "foretold",
        "kept [95 %]",
        "saved",
    ]
    head += ["lead on a mixture [95 %]", "way to the oracle [95 %]"]
    rows = []
    for each in found.many:
        for one in each.promises:
            kept = f"{_percent(one.kept)} [{_percent(one.low)}, {_percent(one.high)}]"
            lead = f"{_number(one.lead)} [{_number(one.lead_low)}, {_number(one.lead_high)}]"
            way = f"{_percent(one.way)} [{_percent(one.way_low)}, {_percent(one.way_high)}]"
            price, spent = f"{one.willingness / 1e9:.4f}", f"{one.cost / 1e6:.3f}"
            told = [_percent(one.floor), price, _number(one.quality), spent, _percent(one.promised), kept]
            rows.append([each.split, str(each.found.n), *told, _percent(one.saving), lead, way])
    return head, rows


def published_table() -> Table:
    """Return published results of other routers."""
    rows = [
        [what, _number(apgr), _NOTHING if low is None or high is None else f"{low:.1f} / {high:.1f}"]
        for what, apgr, low, high in PUBLISHED
    ]
    return ["published", "APGR", "CPT50 / 80"], rows


def price_table() -> Table:
    """Return the prices behind all costs."""
    rows = [[name, f"{one.input:g}", f"{one.output:g}", one.since, one.of] for name, one in PRICES.items()]
    return ["model", "input, US$ / million tokens", "output", "since", "of"], rows


def aligned(table: Table) -> str:
    """Return a table as text, its columns as wide as their widest cell."""
    head, rows = table
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def told(found: Evaluation) -> str:
    """Return everything that the command prints: the main table, published results, several targets, and notes."""
    beside = [table for table in (many_table(found), cascade_table(found.cascades)) if table[1]]
    parts = [aligned(table) for table in (main_table(found), published_table(), *beside)]
    notes = "\n".join(f"note: {note}" for note in found.notes)
    return "\n\n".join([*parts, notes] if notes else parts)


_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { border-bottom: 2px solid #888; } figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; }
figcaption { color: #444; } code { font-size: 13px; }
"""
_PROTOCOL: Final = """
APGR (RouteLLM, arXiv 2406.18665) is 0.5 for a coin; CPT50 and CPT80 are the percentages of calls to the strong model
that win 50 and 80 % of its lead. Intervals are 95 % bootstrap intervals over prompts. Every split was proven disjoint
by normalised prompt text before it was judged. "shipped" is the trained artifact on prompts it has never seen;
"own-N" is taught on the other sources and N labels of the judged one. The baseline is TF-IDF and ridge on that pair
alone; half-way is the middle between it and the ceiling, which knows how many other models did on the very prompt;
RouteLLM is its best published row, and length routes by the prompt's length alone.
Savings take the best threshold afterwards; "Floors promised and kept" shows what is kept when it is chosen beforehand.
"""


def page(found: Evaluation, pictures: Sequence[tuple[str, str, bytes]]) -> str:
    """Return the report as one HTML file with its figures embedded; `pictures` are (title, caption, SVG)."""
    sources = ", ".join(f"{name} {size}" for name, size in found.prompts.items())
    parts = [
        f"<h1>How good the weighing is</h1><p>{html.escape(' '.join(_PROTOCOL.split()))}</p>",
        f"<p>Prompts: {html.escape(sources)}.<br>Data <code>{html.escape(found.data_sha256[:16])}</code></p>",
        _listed(found.notes),
        _html("Ours beside what was known", main_table(found)),
        _html("Published", published_table()),
        *(_figure(*picture) for picture in pictures),
        _html("Money and quality, pair by pair", money_table(found)),
        _html("Targets' probabilities", target_table(found)),
        _html("Several targets at once", many_table(found)),
        _html(
            "Two cheap answers before a dear one; costs as shares of the reference's",
            cascade_table(found.cascades),
        ),
        _html("Floors promised and kept", promise_table(found)),
        _html("Prices", price_table()),
    ]
    body = "\n".join(filter(None, parts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Weighbridge: how good the weighing is'
        f"</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _listed(notes: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes) + "</ul>" if notes else ""


def _html(title: str, table: Table) -> str:
    head, rows = table
    if not rows:
        return ""
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{html.escape(title)}</h2><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _figure(title: str, said: str, svg: bytes) -> str:
    source = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    name, caption = html.escape(title, quote=True), html.escape(said)
    return f'<h2>{name}</h2><figure><img src="{source}" alt="{name}"><figcaption>{caption}</figcaption></figure>'


def write_report(folder: Path, found: Evaluation) -> Path:
    """Write page, figures and numbers to the folder; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        pictures = _pictures(folder, found)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        # Minutes of measuring are not thrown away for want of pictures.
        pictures = []
        note = "there are no pictures, for matplotlib is not installed; the train extra brings it"
        found = msgspec.structs.replace(found, notes=[*found.notes, note])
    path = folder / PAGE
    path.write_text(page(found, pictures), encoding="utf-8")
    (folder / NUMBERS).write_bytes(msgspec.json.format(msgspec.json.encode(_plain(found)), indent=1) + b"\n")
    return path


def _pictures(folder: Path, found: Evaluation) -> list[tuple[str, str, bytes]]:
    """Return the title, caption and SVG of each figure; each is also written to the folder."""
    # matplotlib takes a second to load, and only this needs it.
    import matplotlib as mpl  # noqa: PLC0415

    from classifier.training.plots import plots  # noqa: PLC0415

    pictures = []
    # The same numbers give the same bytes.
    with mpl.rc_context({"svg.hashsalt": "weighbridge"}):
        for plot in plots(found):
            file = io.BytesIO()
            plot.figure.savefig(file, format="svg", metadata={"Date": None})
            (folder / f"{plot.name}.svg").write_bytes(file.getvalue())
            pictures.append((plot.title, plot.told, file.getvalue()))
    return pictures


def _plain(found: Evaluation) -> dict[str, object]:
    return {
        "prompts": found.prompts,
        "data_sha256": found.data_sha256,
        "notes": found.notes,
        "rows": [
            {
                **msgspec.structs.asdict(each.row),
                "saved_at": each.savings,
                "kept_at_saving": each.kept,
                "baseline": baseline_of(each),
            }
            for each in found.judged
        ],
        "targets": [msgspec.to_builtins(each) for each in found.targets],
        "promises": [{"split": each.split, "rows": each.promises} for each in found.many],
        "targets_together": [_many_numbers(found, at) for at in range(len(found.many))],
        "cascades": [recorded(each) for each in found.cascades],
        "own_labels": dict(OWN),
    }


def _many_numbers(found: Evaluation, at: int) -> dict[str, object]:
    each = found.many[at].found
    singles = zip(each.targets, each.single_cost.tolist(), each.single_quality.tolist(), strict=True)
    return {
        "split": found.many[at].split,
        "sources": found.many[at].sources,
        "n": each.n,
        "area": each.area,
        "area_interval": [each.area_low, each.area_high],
        "random_area": each.random_area,
        "least_lead": each.least_lead,
        "oracle": each.oracle,
        "singles": {name: {"nanousd": cost, "score": score} for name, cost, score in singles},
    }
