"""The demo's closing report: a row per prompt, the totals, and how far to trust them."""

import textwrap
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from cost.shown import percent
from gateway.demo.stage import Stage
from gateway.table import print_table

_PROMPT_CHARS = 38
_TEXT_WIDTH = 116


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its reply told it. Money is exact decimal text of US dollars."""

    prompt: str
    stream: bool
    complexity: float
    target: str
    reason: str
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    baseline_usd: Decimal


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums, either of the rows or of what the gateway's ledger answers."""

    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    baseline_usd: Decimal

    @property
    def savings_usd(self) -> Decimal:
        return self.baseline_usd - self.cost_usd

    @property
    def savings_percent(self) -> Decimal:
        if not self.baseline_usd:
            return Decimal(0)
        return (self.savings_usd * 100 / self.baseline_usd).quantize(Decimal("0.1"))


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's closing state: the verdict on the savings, and whether roll-ups and entries agree."""

    target_share: Decimal
    verdict: str
    reasons: tuple[str, ...]
    entries: int
    differences: int
    unserved: Totals
    """Amounts booked beside the rows: attempts whose answer nobody was given."""


def totals(rows: Sequence[Row]) -> Totals:
    """Sum the rows."""
    return Totals(
        requests=len(rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        cost_usd=sum((row.cost_usd for row in rows), Decimal(0)),
        baseline_usd=sum((row.baseline_usd for row in rows), Decimal(0)),
    )


def print_report(rows: Sequence[Row], booked: Totals, closing: Closing, stage: Stage) -> None:
    """Print the table, the totals and the explanations below."""
    headings = ["prompt", "complexity", "target", "why", "in", "out", "cost $", f"{stage.dear} $"]
    cells = [
        [
            cut(row.prompt),
            f"{row.complexity:.2f}",
            row.target,
            row.reason,
            str(row.input_tokens),
            str(row.output_tokens),
            f"{row.cost_usd:.6f}",
            f"{row.baseline_usd:.6f}",
        ]
        for row in rows
    ]
    summed = totals(rows)
    cells.append(
        [
            f"total of {summed.requests}",
            "",
            "",
            "",
            str(summed.input_tokens),
            str(summed.output_tokens),
            f"{summed.cost_usd:.6f}",
            f"{summed.baseline_usd:.6f}",
        ]
    )
    print_table(headings, cells, right=(1, 4, 5, 6, 7), shrink=0)
    say(
        f"\nEverything on {stage.dear} would have cost ${summed.baseline_usd:.6f}. Routed, it cost ${summed.cost_usd:.6f}: "
        f"${summed.savings_usd:.6f} saved, {summed.savings_percent} %."
    )
    say(agreement(summed, booked, closing.unserved))
    say(verified(closing))
    say(verdict(closing))
    say("\n" + textwrap.fill(stage.caveat, _TEXT_WIDTH))
    say("\n`make serve` leaves the same gateway running, with a URL, a key and a link that opens its dashboard.")


def agrees(summed: Totals, booked: Totals, unserved: Totals) -> bool:
    """Return True when the bookings equal the replies' figures and those of answers that nobody was given."""
    return booked == Totals(
        requests=summed.requests + unserved.requests,
        input_tokens=summed.input_tokens + unserved.input_tokens,
        output_tokens=summed.output_tokens + unserved.output_tokens,
        cost_usd=summed.cost_usd + unserved.cost_usd,
        baseline_usd=summed.baseline_usd + unserved.baseline_usd,
    )


def agreement(summed: Totals, booked: Totals, unserved: Totals) -> str:
    """Return the sentence on whether replies and ledger agree."""
    if agrees(summed, booked, unserved):
        told = (
            f"GET /v1/usage tells the same to the last nano-dollar: {booked.requests} requests, ${booked.cost_usd:.9f}."
        )
        if not unserved.input_tokens:
            return told
        return (
            f"{told} ${unserved.cost_usd:.9f} of it are answers that were late or broke off, which cost something, too."
        )
    return (
        f"GET /v1/usage DISAGREES: {booked.requests} requests, {booked.input_tokens} tokens in, {booked.output_tokens} out, "
        f"${booked.cost_usd:.9f} (baseline ${booked.baseline_usd:.9f})."
    )


def verified(closing: Closing) -> str:
    """Return the sentence on whether the ledger agrees with its roll-ups."""
    if closing.differences:
        return f"weighbridge ledger verify: {closing.differences} figures are WRONG."
    return f"weighbridge ledger verify: the books agree, {closing.entries} entries summed up anew."


def verdict(closing: Closing) -> str:
    """Return the sentence with the verdict on the savings target and its reasons."""
    why = f" ({'; '.join(closing.reasons)})" if closing.reasons else ""
    return f"weighbridge savings: the target of {percent(closing.target_share, 0)} is `{closing.verdict}`{why}."


def cut(prompt: str) -> str:
    """Shorten a prompt to one line."""
    line = " ".join(prompt.split())
    return line if len(line) <= _PROMPT_CHARS else line[: _PROMPT_CHARS - 1] + "…"


def say(text: str) -> None:
    """Print a line to standard output, flushed at once."""
    print(text, flush=True)  # noqa: T201 - a command's own output
