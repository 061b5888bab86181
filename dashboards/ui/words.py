"""Sentences about a request: the reasons for its targets, the end of each attempt, and its cost.

Plain text without markup. A reason or flag that is not known here is shown as it is written, never left out.
"""

from collections.abc import Mapping
from typing import Final

from cost.ledger.entries import Entry
from cost.reports.recent import RecentRequest, Way
from cost.shown import nano_money, percent
from cost.usage import CONTINUED, UPSTREAM_STATUS
from dashboards.ui.formats import seconds
from proxy.plan.evidence import EVIDENCE_WORDS, Evidence

CALLER_GONE: Final = 499
_OK: Final = 200
_FAILED_FROM: Final = 400
_US: Final = 1_000_000

_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "cheapest-capable": (
        "Cheapest capable",
        "{target} was the cheapest model expected to answer {prompt} well enough.",
    ),
    "prompt-cache": (
        "Cached",
        "{target} still had the beginning of this conversation in its cache, so it was the cheapest model good enough for {prompt}.",
    ),
    "most-capable": (
        "Most capable",
        "No model was expected to answer {prompt} well enough, so the most capable one, {target}, was asked.",
    ),
    "baseline": (
        "Baseline (quality unknown)",
        "No model is known to answer {prompt} well enough, so the baseline model, {target}, was chosen, although its own quality is unknown.",
    ),
    "dearest": (
        "Most expensive (quality unknown)",
        "The quality of all models that can answer {prompt} is unknown, so the most expensive one, {target}, was chosen.",
    ),
    "named": ("Named", "The caller asked for {target} by name, so nothing was classified."),
    "alias": ("Alias", "The caller asked for “{alias}”, which stands for {target}."),
    "fallback": ("Fallback", "{target} answered as the fallback of a model that could not."),
    "hedge": (
        "Hedged",
        "The attempt before took unusually long, so {target} was asked as well; the first to start answered.",
    ),
    "degraded": (
        "Only weaker left",
        "Every model that is good enough had failed, so a less capable one, {target}, was asked.",
    ),
    "escalated": (
        "Asked again",
        "The answer before was weak (cut off, refused, malformed or unsure), or two cheap models disagreed, so the more capable {target} was asked.",
    ),
    "agreement": (
        "One of two",
        "Answers to this request can be compared by a program, so two cheap models were asked at once before a more expensive one; {target} was one of them.",
    ),
    "holdout": (
        "Experiment",
        "This request was picked at random for the savings experiment, so the baseline model, {target}, answered it.",
    ),
    "spill-over": (
        "Overflow",
        "Our own GPUs would have made it wait, so {target} was asked, a paid model.",
    ),
    "cache": (
        "Given again",
        "{target} answered an equal request before, and that answer was kept.",
    ),
    "same-turn": (
        "Same turn",
        "{target} answered the earlier steps of this turn, and a tool loop stays with one model.",
    ),
    "struggle": (
        "Loop struggled",
        "The tool loop repeated its calls or its errors, so the more capable {target} was asked.",
    ),
}
"""Label and sentence by the reason's name in `proxy.plan.route_plan`."""

EVIDENCE_TONES: Final[Mapping[Evidence, str]] = {
    "measured": "good",
    "published": "info",
    "extrapolated": "info",
    "declared": "warn",
    "none": "warn",
}
"""The tone of a badge that says how it is known how good a model is."""


def evidence_badge(evidence: Evidence) -> tuple[str, str]:
    """Return the words and the tone of a badge that says how it is known how good a model is."""
    return EVIDENCE_WORDS[evidence].capitalize(), EVIDENCE_TONES[evidence]


MARGIN_WORDS: Final[Mapping[str, str]] = {
    "": "nothing was compared",
    "bought": "its price",
    "average": "our own at its average price",
    "own-room": "our own with room",
    "own-filling": "our own, filling up",
    "own-full": "our own without room",
}
"""The origin of a margin, by its name in `proxy.plan.marginal_cost`."""

_MARGINS: Final[Mapping[str, str]] = {
    "bought": "It was compared by its price, {margin}.",
    "average": "It was compared by the average price of our own GPUs, {margin}.",
    "own-room": "Our own GPUs had room and their hours are paid for anyway, so one more request was counted as {margin}.",
    "own-filling": "Our own GPUs were filling up, so one more request was counted as {margin}, for the work it displaces.",
    "own-full": "Our own GPUs had no room, so one more request was counted as {margin}, its cost elsewhere.",
}

_FLAGS: Final[Mapping[str, str]] = {
    "absurd_usage": "the upstream's token counts could not be read, so ours are booked",
    "usage_disputed": "the upstream reported more tokens than possible; the possible part is booked, the rest is disputed",
    "usage_detail_unknown": "the upstream counted something that has no price of its own here; the log names it",
    "told_cost_differs": "the provider reported a cost that differs from our prices; its cost is booked",
    "usage_zero": "the upstream reported no tokens although there was text, so our count is booked",
    "prompt_undertold": "the upstream reported fewer tokens than the prompt's text can have; booked as reported",
    "cache_added": "cached tokens were reported beside the prompt and are added to it",
    "cut_at_bound": "the answer reached the limit of a hard budget and was cut",
    "usage_missing": "the upstream did not say how many tokens it used, so our count is booked",
    "usage_partial": "the upstream counted only a part of the tokens, so the rest is our count",
    "reasoning_added": "reasoning tokens were reported beside the output and are added to it",
    "thought_added": "the upstream's total is higher than prompt and answer; the difference is booked as reasoning",
    "tool_calls_unpriced": "tools run by the provider have no known price and are not in the cost",
    "first_token_timeout": "no first token arrived in time",
    "upstream_timeout": "the upstream stopped answering",
    "stream_cut": "the answer broke off in the middle",
    "deadline_exceeded": "the deadline passed",
    "upstream_error": "the upstream answered with an error",
    "caller_gone": "the caller hung up before the end",
    "slow_reader": "the caller stopped reading",
    "shutdown": "the gateway was stopped",
    "failed": "it failed within the gateway",
    "escalated": "the answer was weak and was not returned",
    "discarded": "the answer was the weaker of the two and was not returned",
    "confirmed": "another cheap model gave the same answer, which was returned",
    "disputed": "two cheap models disagreed, so another answer was returned",
    "hedge_lost": "another attempt was faster, so this one was cancelled",
    "continued": "it continued an answer that had broken off on another replica",
    "orphaned": "the gateway's process died during the request; it is booked at its highest possible cost",
    "other_version": "a rollout planned another version, but none of its replicas had room",
    "lost_host": "the gateway's machine was lost during the request; it is booked at its highest possible cost",
}


NOT_GIVEN: Final = frozenset({("escalated",), ("discarded",), ("confirmed",), ("disputed",)})
"""Flags of whole answers that were not given."""


_LABELLED: Final[Mapping[str, str]] = {
    "escalated": "Escalated",
    "agreement": "Two agreed",
    "cache": "Given again",
}
"""Answers that are told by the reason of their target."""


def reason_label(reason: str) -> str:
    """Return a reason in a few words, for a column."""
    return _REASONS[reason][0] if reason in _REASONS else reason or "Unknown"


WAY_LABELS: Final[Mapping[Way, str]] = {"retry": "Retry", "continued": "Went on"}
"""Labels of attempts that no target was chosen anew for."""


def because(entry: Entry, way: Way = "first") -> str:
    """Return one sentence with the reason for this target."""
    if way == "retry":
        return f"{entry.target_id} was asked again, as such a failure may pass."
    if CONTINUED in entry.flags:
        return f"An answer that breaks off is continued for this team, so another replica of {entry.target_id} was asked for the rest."
    prompt = "this prompt" if entry.complexity is None else f"a prompt of complexity {entry.complexity:.2f}"
    if entry.reason not in _REASONS:
        return f"{entry.target_id} was asked ({entry.reason or 'no reason is known'})."
    return _REASONS[entry.reason][1].format(target=entry.target_id, prompt=prompt, alias=entry.alias)


def margin_words(entry: Entry) -> str:
    """Return one sentence on the basis of the comparison of targets; empty where nothing was compared."""
    if entry.margin_nanousd is None or entry.margin_why not in _MARGINS:
        return ""
    told = _MARGINS[entry.margin_why].format(margin=nano_money(entry.margin_nanousd))
    return told if entry.margin_why == "bought" else f"{told} The average price is booked."


def flag_words(flag: str) -> str:
    """Return a flag in words; an unknown one as written."""
    if flag.startswith(UPSTREAM_STATUS):
        return f"its status was {flag.removeprefix(UPSTREAM_STATUS)}"
    return _FLAGS.get(flag, flag.replace("_", " "))


def cause_words(cause: str) -> str:
    """Return a cause of `cost.reports.latency.failures` as a table cell, capitalised."""
    told = flag_words(cause)
    return told[:1].upper() + told[1:]


def outcome(request: RecentRequest) -> tuple[str, str]:
    """Return the request's outcome for its caller: a few words and a tone."""
    told = request.told
    if told.served or (request.was_given_again and told.status == _OK):
        if told.reason in _LABELLED:
            return _LABELLED[told.reason], "info"
        if len(request.attempts) == 1:
            return "Answered", "good"
        return _several(request), "info"
    if told.entry == "expire" or told.status == 0:
        return "Unknown", "warn"
    if told.status == CALLER_GONE:
        return "Caller hung up", "quiet"
    return (f"Failed ({told.status})", "bad") if told.status >= _FAILED_FROM else ("Broken off", "bad")


def _several(request: RecentRequest) -> str:
    """Return the reasons why an answer took several attempts."""
    if any("disputed" in each.flags for each in request.attempts):
        return "Two differed"
    return (
        "Hedged"
        if request.was_hedged
        else "Continued"
        if CONTINUED in request.told.flags
        else "Fell back"
        if request.fell_back
        else "Retried"
    )


def decision(request: RecentRequest) -> tuple[str, ...]:
    """Return the request's story: two or three sentences for each attempt, and one on cost."""
    asked = _request_sentence(request.attempts[0])
    told = [
        (because(entry, way), margin_words(entry), ended(entry, goes_on=goes_on))
        for entry, way, goes_on in zip(request.attempts, request.ways, going_on(request), strict=True)
    ]
    return (asked, *(sentence for each in told for sentence in each if sentence), money_words(request))


def going_on(request: RecentRequest) -> tuple[bool, ...]:
    """Return, for each attempt, whether a later one went on with the answer that it had begun."""
    last = request.attempts[-1]
    continued = last.served and CONTINUED in last.flags
    broken = [continued and each.entry == "settle" and each.ttft_us is not None for each in request.attempts[:-1]]
    return (*broken, False)


def ended(entry: Entry, *, goes_on: bool = False) -> str:
    """Return one sentence on the end of an attempt. `goes_on`: another one went on with its answer."""
    lasted = None if entry.duration_us is None else seconds(entry.duration_us / _US)
    after = f" after {lasted}" if lasted else ""
    if entry.entry in {"cache", "void"}:
        given_up = f"It was given up{_cause_clause(entry, after)}; nothing can have been charged."
        return f"It was given again{after}, and nobody was asked." if entry.entry == "cache" else given_up
    if entry.served:
        first = (
            f", its own first token after {seconds(entry.ttft_us / _US)}"
            if entry.stream and entry.ttft_us is not None
            else ""
        )
        return f"It answered{after}{first}, and the caller got that answer.{_flags_sentence(entry)}"
    if entry.status == _OK and entry.flags[:1] in NOT_GIVEN:
        return f"It answered{after}, but {flag_words(entry.flags[0])}; what it cost is booked.{_flags_sentence(entry, skip=1)}"
    if goes_on:
        return f"It broke off{_cause_clause(entry, after)}, and another replica went on with the answer; the tokens used are booked."
    if entry.flags[:1] == ("hedge_lost",):
        return f"It had not begun to answer{after}, and {flag_words('hedge_lost')}; what it used is booked.{_flags_sentence(entry, skip=1)}"
    return f"The caller got no whole answer{_cause_clause(entry, after)}; the tokens used are booked."


def money_words(request: RecentRequest) -> str:
    """Return the request's cost, and the baseline's."""
    cost, baseline, told = request.cost_nanousd, request.baseline_nanousd, request.told
    if request.was_given_again:
        saved = told.cache_saved_nanousd
        return f"It cost nothing{f': {nano_money(saved)} was saved, what the answer had cost' if saved else ''}."
    if cost is None:
        return "Its cost and savings are unknown, because a model without a price was asked."
    spent = f"It cost {nano_money(cost)}{', based on estimated tokens' if request.estimated else ''}."
    if baseline is None:
        return f"{spent} {'There is nothing to compare it with.' if told.served else 'Nothing was delivered, so nothing was saved.'}"
    reference = told.baseline_price.rpartition("@")[0] or "the baseline model"
    if told.target_id == reference and cost == baseline:
        return f"{spent} That is what the baseline model, {reference}, costs: it was the one that answered."
    saved = baseline - cost
    share = f" ({percent(abs(saved) / baseline)})" if baseline > 0 else ""
    change = (
        f"{nano_money(saved)}{share} was saved" if saved >= 0 else f"it was {nano_money(-saved)}{share} more expensive"
    )
    return f"{spent} The same tokens at {reference} would have cost {nano_money(baseline)}, so {change}."


def _request_sentence(entry: Entry) -> str:
    weighed = entry.complexity is not None
    what = "the gateway to choose (“auto”)" if entry.alias == "auto" else f"“{entry.alias}”"
    kind = f"Classified at complexity {entry.complexity:.2f} of 1" if weighed else "It was not classified"
    return f"The caller asked for {what} in the {entry.tier} tier. {kind}."


def _cause_clause(entry: Entry, after: str) -> str:
    known = [flag_words(flag) for flag in entry.flags]
    told = any(flag.startswith(UPSTREAM_STATUS) for flag in entry.flags)
    if entry.status >= _FAILED_FROM and entry.status != CALLER_GONE and not told:
        known.append(f"status {entry.status}")
    return f"{after}: {', '.join(known)}" if known else after


def _flags_sentence(entry: Entry, skip: int = 0) -> str:
    flags = entry.flags[skip:]
    return f" Note: {'; '.join(map(flag_words, flags))}." if flags else ""
