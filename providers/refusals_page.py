"""Generator of docs/refusals.md from the table of refusals: `python -m providers.refusals_page > docs/refusals.md`.

A test holds the page to what this prints, so no row goes undocumented.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date as Day  # noqa: N812  Rows have a field `date`.
from itertools import groupby
from typing import Final

from providers.errors import Owner
from providers.refusals import Row, Seen, read_table

_HEAD: Final = """# Refusals and who can mend them

*Reference. For operators and providers' integrators. Answers: what the gateway makes of a provider's or engine's refusal.*

Made of [`providers/data/refusals.toml`](../providers/data/refusals.toml) by `python -m providers.refusals_page > docs/refusals.md`. The rows
hold for every upstream, for errors within a stream or a batch, and for an error that a gateway in between repeats.

| owner | what follows for the deployment | what the caller gets |
|---|---|---|
| request | nothing; it is healthy | the provider's words with 400, 413 or 422 and the code that clients act on; with *→* other targets are asked first |
| operator | it is down with that reason until a probe succeeds; with a *?* it only counts as a failure | another target's answer, else 502 `upstream_refused` (the words are in the log) |
| pace | no calls for as long as it asks, at most `providers.breaker.max_ejection_s` | another target's answer, else 429 `upstream_rate_limited` or 503 `upstream_overloaded` with `retry-after` |
| health | its circuit breaker counts it | another target's answer, else 502 |

Operator's reasons: `key`, `credit` (an empty account), `quota` (a spending limit or plan), `permission` (also countries and firewalls),
`model`, `address`. A *length* is tried elsewhere and told as `context_length_exceeded`. Rows with words are tried first, then codes, then a status alone; between commas any one will do. *Begins* must match the message's beginning, since
providers repeat requests behind their own words. Words that stand in the request itself count for nothing, so no request can take a
deployment from other callers. `*` is one word. Sources were read on {day} unless a row says otherwise.
"""

_SEEN: Final[dict[Seen, str]] = {
    "document": "document",
    "source": "source",
    "report": "report",
    "described": "described",
    "recalled": "related",
}
_OWNERS: Final[dict[Owner, str]] = {
    "request": "request",
    "operator": "operator",
    "pace": "pace",
    "health": "health",
}
_TITLES: Final = {"many": "Words of many providers", "any": "A status alone"}


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    table = read_table()
    day = Counter(row.date for row in table.refusal).most_common(1)[0][0]
    yield from _HEAD.replace("{day}", str(day)).splitlines()
    for provider, rows in groupby(table.refusal, key=lambda row: row.provider):
        yield from ("", f"## {_TITLES.get(provider, provider)}", "")
        owed: dict[str, list[str]] = {}
        for row in rows:
            owed.setdefault(_outcome(row), []).append(f"{_reply(row)} ({_where(row.seen, row.source, row.date, day)})")
        yield from (f"- **{outcome}**: {'; '.join(replies)}" for outcome, replies in owed.items())
    yield from ("", *_PACE.format(words=", ".join(f"*{each.after} …*" for each in table.wait)).splitlines(), "")
    for each in table.reset:
        where = _where(each.seen, each.source, each.date, day)
        yield f"- {each.provider}: `{each.remaining}`, `{each.reset}` (`{each.example}`; {where})"
    yield from ("", "## How sure it is", "")
    yield from (f"- {words}: {_MEANS[seen]}" for seen, words in _SEEN.items())


_MEANS: Final[dict[Seen, str]] = {
    "document": "the provider's documentation",
    "source": "source code that sends or reads it",
    "report": "somebody's report of the reply",
    "described": "described there, without its words",
    "recalled": "the page is about the matter and does not have the words",
}


_PACE: Final = """## How long a provider asks to be left alone

`retry-after-ms` and `retry-after` are read first; then the reset of each limit of which nothing is left (seconds, a duration such as
`6m0s`, a date, or a moment since 1970), Google's `retryDelay`, the headers that OpenRouter repeats in `metadata`, and words: {words}.
At most an hour is waited; a value that cannot be meant is ignored. The fields of what is left and of when it resets:
"""


def _reply(row: Row) -> str:
    """Return the statuses, codes and words that the row is known by."""
    kinds = [
        ", ".join(f"`{code}`" for code in sorted(row.codes)),
        row.begins and f"begins {', '.join(map(_quoted, row.begins))}",
        ", ".join(map(_quoted, row.words)),
    ]
    said = [kind for kind in kinds if kind]
    both = (row.codes and (row.begins or row.words)) or (row.begins and row.words)
    statuses = ", ".join(map(str, sorted(row.status)))
    says = (" and " if both else " or ").join(said)
    return f"{statuses}: {says}" if statuses and says else statuses or says


def _outcome(row: Row) -> str:
    """Return whose the refusal is, why, and what callers are told."""
    about = f" ({row.reason})" if row.reason else ""
    if row.reason == "length" and row.elsewhere and row.told_code == "context_length_exceeded":
        return f"{_OWNERS[row.owner]}{about}"
    elsewhere = "→" if row.elsewhere else ""
    told = f", `{row.told_code}`" if row.told_code else ""
    return f"{_OWNERS[row.owner]}{'' if row.certain else '?'}{elsewhere}{about}{told}"


def _quoted(words: str) -> str:
    return f"“{words.strip()}”".replace("|", "\\|").replace("`", "\\`").replace("*", "\\*").replace("<", "\\<")


def _where(seen: Seen, source: str, date: Day | None, usual: Day | None) -> str:
    """Return the link to a source, with its date where that is not the usual one."""
    return f"[{_SEEN[seen]}]({source})" + ("" if date == usual else f", {date}")


if __name__ == "__main__":
    sys.stdout.write(page())
