"""Daily report as one self-contained HTML file: no script, no external picture. Every text is escaped."""

from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Final

from cost.budgets.budget import BudgetStatus
from cost.fleet.earnings import PoolEarnings
from cost.meters import METERS
from cost.reports.daily import (
    SECTIONS,
    WEEK,
    DailyReport,
    DayFigures,
    Section,
    change,
    exact_usd,
    meters_of,
    saving,
    share,
)
from cost.reports.usage import UsageSums
from cost.shown import nano_money, percent

_WIDTH: Final = 840
_HEIGHT: Final = 150
_LABEL: Final = 18
_NOBODY: Final = {"team": "(no team: idle GPUs, corrections)", "tag": "(no tag)", "key": "(no key)"}
_GROUP_HEADINGS: Final = ("Requests", "Input tokens", "Output tokens", "Cost", "Baseline", "Saving")
_METER_WORDS: Final = {each.name: each.report_label for each in METERS}


class Html(str):
    """Text that is HTML already; any other text is escaped on insertion."""

    __slots__ = ()


def daily_html(report: DailyReport, made_at: str) -> str:
    """Return the HTML file. `made_at` is shown as the time of making."""
    return _fill(
        _page(),
        title=f"Daily report: {report.title}",
        day=report.day.isoformat(),
        time_zone=report.time_zone,
        long_day=f"{report.day:%A}, {report.day.day} {report.day:%B %Y}",
        organisation=report.organisation_id,
        cards=_joined(_cards(report)),
        warnings=_joined(_warnings(report)),
        chart=_chart(report.days),
        tables=_joined(_tables(report)),
        foot=f"Made {made_at} from the books. Cost is everything that was spent, failed attempts, comparisons and "
        "corrections included; the baseline is what served requests would have cost at the baseline model. Whether the "
        "savings target is met is told by `weighbridge savings`.",
    )


def spent(sums: UsageSums) -> str:
    """Return the cost for people; unpriced attempts are told beside it, and are never a zero."""
    known = sums.known_cost_nanousd
    unpriced = f"{sums.unpriced_attempts:,} unpriced" if sums.unpriced_attempts else ""
    if known is None:
        return unpriced
    return f"{nano_money(known)} + {unpriced}" if unpriced else nano_money(known)


@cache
def _page() -> Template:
    return Template(Path(__file__).with_name("daily.html").read_text(encoding="utf-8"))


def _fill(template: Template, **texts: str) -> Html:
    return Html(template.substitute({name: _safe(text) for name, text in texts.items()}))


def _safe(text: str) -> Html:
    return text if isinstance(text, Html) else Html(escape(text, quote=True))


def _joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


_CARD: Final = Template('<div class="card"><span>$name</span><b title="$exact">$figure</b>$lines</div>\n')
_CARD_LINE: Final = Template("<span>$text</span>")


def _cards(report: DailyReport) -> Iterable[Html]:
    total, month = report.total, report.month
    to_day = percent(change(total.cost_nanousd, report.day_before.cost_nanousd), signed=True)
    to_week = percent(change(total.cost_nanousd, report.week_before.cost_nanousd, WEEK), signed=True)
    yield _card(
        "Cost",
        spent(total),
        f"{exact_usd(total.cost_nanousd)} USD",
        f"{to_day} to the day before",
        f"{to_week} to the 7-day mean",
    )
    saved = saving(total)
    if saved is None:
        yield _card("Saving", "-", "", "nothing has a baseline")
    else:
        part = percent(share(saved, total.baseline_nanousd)) if saved >= 0 else "it cost more than the baseline"
        yield _money_card("Saving", saved, f"of {nano_money(total.baseline_nanousd)} baseline", part)
    to_day = percent(change(total.requests, report.day_before.requests), signed=True)
    to_week = percent(change(total.requests, report.week_before.requests, WEEK), signed=True)
    yield _card("Requests", f"{total.requests:,}", "", f"{to_day} to the day before", f"{to_week} to the 7-day mean")
    tokens = total.input_tokens + total.output_tokens
    yield _card("Tokens", f"{tokens:,}", "", f"{total.input_tokens:,} in", f"{total.output_tokens:,} out")
    month_saved = saving(month)
    told = "nothing has a baseline" if month_saved is None else f"saving {nano_money(month_saved)}"
    yield _money_card("Month to date", month.cost_nanousd, told, f"{month.requests:,} requests")


def _money_card(name: str, amount_nanousd: int, *lines: str) -> Html:
    return _card(name, nano_money(amount_nanousd), f"{exact_usd(amount_nanousd)} USD", *lines)


def _card(name: str, figure: str, exact: str, *lines: str) -> Html:
    told = _joined(_fill(_CARD_LINE, text=line) for line in lines)
    return _fill(_CARD, name=name, figure=figure, exact=exact, lines=told)


_WARNING: Final = Template('<p class="warn">$text</p>\n')


def _warnings(report: DailyReport) -> Iterable[Html]:
    total = report.total
    if total.unpriced_attempts:
        told = "Attempts without a price, which are not in the cost, so that the saving may be overstated"
        yield _fill(_WARNING, text=f"{told}: {total.unpriced_attempts:,}.")
    if total.estimated_attempts:
        part = percent(share(total.estimated_attempts, total.attempts))
        yield _fill(_WARNING, text=f"Attempts booked at an estimate: {total.estimated_attempts:,} ({part}).")
    if 0 < total.baseline_rows < total.served:
        part = percent(share(total.baseline_rows, total.served))
        yield _fill(_WARNING, text=f"Only {part} of the served requests have a baseline, so the saving is understated.")
    for standing in report.standings:
        if standing.state != "open":
            budget = standing.budget
            word = "spent" if standing.state == "spent" else "at its warning"
            yield _fill(_WARNING, text=f"The budget of {budget.scope} {budget.shown_id} ({budget.period}) is {word}.")


_CHART: Final = Template(
    '<svg viewBox="0 0 $width $height" role="img" aria-label="$label">$bars'
    '<line class="axis" x1="0" x2="$width" y1="$floor" y2="$floor"/></svg>\n'
)
_BAR: Final = Template(
    '<g><title>$told</title><rect class="$kind" x="$x" y="$y" width="$width" height="$height" rx="2"/>'
    '<text x="$middle" y="$below" text-anchor="middle">$day</text></g>'
)


def _chart(days: Sequence[DayFigures]) -> Html:
    """Draw a bar chart of cost. A day of zero or negative cost, as after corrections, has no bar."""
    most = max((each.sums.cost_nanousd for each in days), default=0)
    step = _WIDTH // max(1, len(days))
    floor = _HEIGHT - _LABEL

    def bar(place: int, each: DayFigures) -> Html:
        height = max(0, each.sums.cost_nanousd) * (floor - 4) // most if most > 0 else 0
        return _fill(
            _BAR,
            told=f"{each.day}: {nano_money(each.sums.cost_nanousd)}, {each.sums.requests:,} requests",
            kind="now" if place == len(days) - 1 else "bar",
            x=str(place * step + 4),
            y=str(floor - height),
            width=str(step - 8),
            height=str(height),
            middle=str(place * step + step // 2),
            below=str(_HEIGHT - 4),
            day=f"{each.day.day} {each.day:%b}",
        )

    bars = _joined(bar(place, each) for place, each in enumerate(days))
    label = f"Cost of each of the last {len(days)} days; the highest is {nano_money(most)}"
    return _fill(_CHART, width=str(_WIDTH), height=str(_HEIGHT), floor=str(floor), label=label, bars=bars)


_TABLE: Final = Template(
    '<section>\n<h2>$title</h2>\n<div class="scroll"><table><thead><tr>$headings</tr></thead>\n'
    "<tbody>\n$rows</tbody></table></div>\n</section>\n"
)
_HEADING: Final = Template('<th scope="col">$text</th>')
_ROW: Final = Template("<tr>$cells</tr>\n")
_CELL: Final = Template("<td>$text</td>")


def _tables(report: DailyReport) -> Iterable[Html]:
    for section in report.sections:
        if section.groups:
            yield _group_table(section)
    meters = [
        [_METER_WORDS[each.name], f"{each.used:,}", nano_money(each.cost_nanousd)]
        for each in meters_of(report.total)
        if each.used or each.cost_nanousd
    ]
    if meters:
        yield _table("By meter", ["Meter", "Used", "Cost"], meters)
    if report.total.cache_hits:
        yield _table(
            "Answers given again, in none of the other figures",
            ["Answers", "Tokens not used", "Saved"],
            [
                [
                    f"{report.total.cache_hits:,}",
                    f"{report.total.replayed_input_tokens + report.total.replayed_output_tokens:,}",
                    nano_money(report.total.cache_saved_nanousd),
                ]
            ],
        )
    if report.standings:
        yield _table(
            "Budgets, as they stand now",
            ["Budget", "Period", "Kind", "Limit", "Spent", "Share"],
            [_standing_row(each) for each in report.standings],
        )
    if report.pools:
        yield _table(
            "Hours of our own GPUs",
            ["Pool", "Replica-hours", "Paid", "Avoided elsewhere", "Difference", "Best fixed fleet in hindsight"],
            [_pool_row(each) for each in report.pools],
        )
    days = [[each.day.isoformat(), *_figures(each.sums)] for each in reversed(report.days)]
    yield _table("Day by day", ["Day", *_GROUP_HEADINGS], days)


def _group_table(section: Section) -> Html:
    rows = [[each.name or _NOBODY.get(section.dimension, "(none)"), *_figures(each.sums)] for each in section.groups]
    if section.left_out is not None:
        rows.append([f"all other {SECTIONS[section.dimension]}", *_figures(section.left_out)])
    return _table(f"By {section.dimension}", [section.dimension.capitalize(), *_GROUP_HEADINGS], rows)


def _figures(sums: UsageSums) -> list[str]:
    saved = saving(sums)
    return [
        f"{sums.requests:,}",
        f"{sums.input_tokens:,}",
        f"{sums.output_tokens:,}",
        spent(sums),
        "-" if saved is None else nano_money(sums.baseline_nanousd),
        "-" if saved is None else nano_money(saved),
    ]


def _pool_row(each: PoolEarnings) -> list[str]:
    found = each.earnings
    amounts = (found.paid_nanousd, found.avoided_nanousd, found.net_nanousd)
    best = f"{found.best_fixed:,} for {nano_money(found.best_fixed_nanousd)}"
    return [each.pool, f"{each.hours:,}", *(nano_money(amount) for amount in amounts), best]


def _standing_row(standing: BudgetStatus) -> list[str]:
    budget = standing.budget
    return [
        f"{budget.scope} {budget.shown_id}",
        budget.period,
        budget.kind,
        nano_money(standing.limit_nanousd),
        nano_money(standing.spent_nanousd),
        percent(standing.share),
    ]


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    return _fill(
        _TABLE,
        title=title,
        headings=_joined(_fill(_HEADING, text=each) for each in headings),
        rows=_joined(_fill(_ROW, cells=_joined(_fill(_CELL, text=cell) for cell in row)) for row in rows),
    )
