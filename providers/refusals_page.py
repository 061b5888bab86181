"""Generator of docs/refusals.md from the table of refusals: `python -m providers.refusals_page > docs/refusals.md`.

A test holds the page to what this prints, so no row goes undocumented.
"""

import sys
from collections.abc import Iterator
from datetime import date as Day  # noqa: N812  Rows have a field `date`.
from itertools import groupby
from typing import Final

from providers.errors import Owner
from providers.refusals import Row, Seen, read_table

_HEAD: Final = """# Whose a refusal is

A provider or an engine that refuses a request says why in a status, a code or words, each in its own. This page has all that the
gateway knows, and is made of [`providers/refusals.toml`](../providers/refusals.toml)
(`python -m providers.refusals_page > docs/refusals.md`). Which provider a row was found at does not matter when it is looked up:
gateways pass on what others say. The same holds for an error within a stream, for a batch, and for the error of a provider that a
gateway in between repeats in its own.

| whose | what it means for the deployment | what the caller gets |
|---|---|---|
| the request's | nothing: it is well | the provider's words with 400, 413 or 422, and the code that clients act on; where a row says *elsewhere*, other targets are asked before |
| the operator's | no call can succeed until somebody mends it: it is down with that reason. *Perhaps* only counts as a failure: a bare 403 may be a firewall's answer to one prompt | another target's answer, else 502 `upstream_refused` without the provider's words, which stand in the log |
| the provider's pace | it is left alone for as long as it asks, at most `providers.breaker.max_ejection_s` | another target's answer, else 429 `upstream_rate_limited` or 503 `upstream_overloaded` with `retry-after` |
| the provider's health | its circuit breaker counts it | another target's answer, else 502 |

The operator's reasons are `key`, `credit` (an empty account), `quota` (a limit of spending, or a plan without this model), `permission`
(also countries and firewalls), `model` and `address`.

Rows that look for words come first, then those that look for a code, then those for a status alone. Words *at the beginning* have to
begin the message: providers repeat requests mostly behind words of their own. Some do so before them (Anthropic, the name of a field that it does
not know), so words, and the JSON of an error within an error, that stand in the request itself count for nothing: then its status alone says
whose the refusal is, and no request takes a deployment from other callers. `*` is one word.
"""

_SEEN: Final[dict[Seen, str]] = {
    "document": "document",
    "source": "source code",
    "report": "public report",
    "described": "described there, without its words",
    "recalled": "no address of the words at hand; the matter",
}
_OWNERS: Final[dict[Owner, str]] = {
    "request": "the request's",
    "operator": "the operator's",
    "pace": "the provider's pace",
    "health": "the provider's health",
}
_TITLES: Final = {"many": "Words that many have", "any": "A status alone"}


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    table = read_table()
    yield from _HEAD.splitlines()
    for provider, rows in groupby(table.refusal, key=lambda row: row.provider):
        yield from ("", f"## {_TITLES.get(provider, provider)}", "")
        yield from ("| it says | with status | whose | where from |", "|---|---|---|---|")
        yield from map(_row, rows)
    yield from ("", *_PACE.format(words=", ".join(f"*{each.after} …*" for each in table.wait)).splitlines())
    for each in table.reset:
        where = _where(each.seen, each.source, each.date)
        yield f"| {each.provider} | `{each.remaining}` | `{each.reset}` | `{each.example}` | {where} |"
    yield from ("", "## How sure it is", "", "| where a row is from | rows |", "|---|---|")
    yield from (f"| {words} | {sum(row.seen == seen for row in table.refusal)} |" for seen, words in _SEEN.items())


_PACE: Final = """## How long a provider asks to be left alone

`retry-after-ms` and `retry-after` (seconds or a date) are read first. Then the reset of each limit of which nothing is left, which may
be told as seconds, as a duration such as `6m0s`, as a date, or as a moment since 1970 in seconds or milliseconds. Then `retryDelay` in
Google's details, the headers that OpenRouter repeats in `metadata`, and words: {words}. At most an hour is waited, and what
cannot be meant counts as not said.

| provider | nothing left of | fresh at | such as | where from |
|---|---|---|---|---|"""


def _row(row: Row) -> str:
    said = [
        *(f"`{code}`" for code in sorted(row.codes)),
        *(f"*at the beginning* {_quoted(words)}" for words in row.begins),
        *(_quoted(words) for words in row.words),
    ]
    both = (row.codes and (row.begins or row.words)) or (row.begins and row.words)
    statuses = ", ".join(map(str, sorted(row.status)))
    whose = _OWNERS[row.owner] if row.certain else f"{_OWNERS[row.owner]}, perhaps"
    about = f" ({row.reason})" if row.reason else ""
    elsewhere = ", *elsewhere*" if row.elsewhere else ""
    told = f", told as `{row.told_code}`" if row.told_code else ""
    says = (" and " if both else " or ").join(said) or "anything else"
    return (
        f"| {says} | {statuses or 'any'} | {whose}{about}{elsewhere}{told} | {_where(row.seen, row.source, row.date)} |"
    )


def _quoted(words: str) -> str:
    return f"“{words.strip()}”".replace("|", "\\|").replace("`", "\\`").replace("*", "\\*").replace("<", "\\<")


def _where(seen: Seen, source: str, day: Day | None) -> str:
    return f"[{_SEEN[seen]}]({source}), {day}"


if __name__ == "__main__":
    sys.stdout.write(page())
