"""The comparison of a request's targets as a table, and the sentence that tells what decided."""

from collections.abc import Mapping
from typing import Final

from cost.reports.recent import RecentRequest
from cost.shown import nano_money, percent
from dashboards.ui.tables import Column, Row, Table
from dashboards.ui.words import MARGIN_WORDS, reason_label
from proxy.plan.decision_record import Considered, ConsideredTarget, read

OBSTACLE_WORDS: Final[Mapping[str, str]] = {
    "too-hard": "not good enough",
    "not-allowed": "not for this team",
    "guard": "the guard keeps it to own engines",
    "tier": "not in this tier",
    "capability-missing": "cannot do it",
    "context": "too long for it",
    "output": "its answers are too short",
    "parameter": "cannot take a parameter",
    "provider-tool": "does not run a tool that was asked for",
    "unpriced": "without a price",
    "weight-zero": "weight 0",
    "unavailable": "not available",
    "vetoed": "refused by a plug-in",
    "unknown": "nothing is known of it",
}
"""Reasons for passing a target over, by the obstacle's name in `proxy.plan.route_plan`."""

COLUMNS: Final = (
    Column("place", "Order", "number", "In which the models would be asked", sortable=False),
    Column("target", "Model", "code", sortable=False),
    Column("state", "Decision", "badge", sortable=False),
    Column(
        "adequate", "Chance", "share", "Predicted chance that its answer is good enough; measured ones", sortable=False
    ),
    Column(
        "lost",
        "Chance lost",
        "exact_share",
        "The baseline model's chance less this one's; below 0 it is the better one",
        sortable=False,
    ),
    Column("expected", "Price", "money", "What the request was expected to cost there", sortable=False),
    Column("margin", "Margin", "money", "What one more request was reckoned at: the order goes by it", sortable=False),
    Column("because", "Margin from", sortable=False),
    Column("detail", "Note", sortable=False),
)


def considered_of(request: RecentRequest) -> Considered | None:
    """Return the comparison that was written with the request's first attempt; None where none was."""
    return next((found for each in request.attempts if (found := read(each.considered)) is not None), None)


def considered_table(considered: Considered) -> Table:
    """Return a row for each target, those that could be asked first."""
    chosen = considered.chosen
    rows: list[Row] = []
    for place, each in enumerate(considered.targets, 1):
        rows.append(_row(considered, each, place if each.may_be_asked else None, is_chosen=each is chosen))
    return Table.of(COLUMNS, rows, {}, name="considered", caption="Models compared")


def _row(considered: Considered, each: ConsideredTarget, place: int | None, *, is_chosen: bool) -> Row:
    if is_chosen:
        state = ("Chosen", "good")
    elif each.may_be_asked:
        state = ("Next, if that fails", "info")
    else:
        state = (OBSTACLE_WORDS.get(each.why, each.why).capitalize(), "quiet")
    return {
        "place": place,
        "target": each.target_id,
        "state": state,
        "adequate": each.adequate,
        "lost": lost_against_baseline(considered, each),
        "expected": each.expected_nanousd,
        "margin": each.margin_nanousd,
        "because": None if each.margin_nanousd is None else MARGIN_WORDS.get(each.margin_why, each.margin_why),
        "detail": considered.note(each) or reason_label(each.why),
    }


def lost_against_baseline(considered: Considered, each: ConsideredTarget) -> float | None:
    if considered.reference_adequate is None or each.adequate is None:
        return None
    return round(considered.reference_adequate - each.adequate, 4)


def deciding(considered: Considered, complexity: float | None) -> str:
    """Return one or two sentences: what made the chosen target good enough, and what put it first."""
    chosen = considered.chosen
    if chosen is None:
        return ""
    if chosen.why in {"cheapest-capable", "prompt-cache", "spill-over"}:
        return f"{_good_enough(considered, chosen, complexity)} {_first(considered, chosen)}"
    if chosen.why == "baseline":
        return f"No model was known to be good enough, so {chosen.target_id}, the baseline model, was asked, although its own quality is unknown."
    if chosen.why == "dearest":
        return f"The quality of every model that could be asked is unknown, so the most expensive one, {chosen.target_id}, was asked."
    if chosen.why == "most-capable":
        return f"No model was good enough, so price did not count: {chosen.target_id} came nearest."
    return f"{reason_label(chosen.why)}: {chosen.target_id}."


def _good_enough(considered: Considered, chosen: ConsideredTarget, complexity: float | None) -> str:
    lost = lost_against_baseline(considered, chosen)
    if lost is None or chosen.adequate is None or considered.reference_adequate is None:
        if complexity is None or chosen.capability is None:
            return f"{chosen.target_id} was good enough."
        return f"{chosen.target_id} is declared capable up to {chosen.capability:.2f}; the prompt was classified at {complexity:.2f}."
    beside = (
        "the best known model, as nothing is known of the baseline model,"
        if considered.stand_in
        else "the baseline model"
    )
    told = f"{chosen.target_id} has a chance of {percent(chosen.adequate)} of a good answer, {beside} {percent(considered.reference_adequate)}"
    if all(each.adequate is None or each.adequate <= chosen.adequate for each in considered.targets):
        return f"{told}; none is more likely to be good."
    return f"{told}: a better chance would cost more than it is worth."


def _first(considered: Considered, chosen: ConsideredTarget) -> str:
    others = [each for each in considered.targets if each.may_be_asked and each is not chosen]
    if chosen.margin_nanousd is None:
        return "It was asked first."
    own = f"At {nano_money(chosen.margin_nanousd)} for one more request"
    if not others:
        return f"{own} it was the only one good enough."
    following = others[0]
    behind = following.margin_nanousd is not None and following.margin_nanousd < chosen.margin_nanousd
    if (
        behind
        and following.adequate is not None
        and chosen.adequate is not None
        and following.adequate < chosen.adequate
    ):
        return f"Should it fail, {following.target_id} is asked: it is cheaper, and less likely to be good."
    if following.margin_nanousd is None:
        return f"{own} it came before {following.target_id}, which has no price."
    return f"{own} it came before {following.target_id} at {nano_money(following.margin_nanousd)}."
