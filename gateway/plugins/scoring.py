"""Scorers: what they say of the targets that a request may go to."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.plugins.calls import Calls, NoAnswer
from proxy.plan.scores import NO_SCORES, ScoredRequest, Scores
from weighbridge.plugins import Candidate, RequestFacts, Scorer
from weighbridge.plugins.checking import checked_scores

_MOST_WORDS = 200


class Scoring(msgspec.Struct, frozen=True):
    """One scorer."""

    scorer: Scorer
    calls: Calls
    text: bool = False


def scores_of(scorings: Sequence[Scoring]) -> Callable[[ScoredRequest], Scores]:
    """Return a function that asks all scorers. A veto of one holds; margins add up. A scorer without an answer says nothing."""

    def asked(request: ScoredRequest) -> Scores:
        vetoes: dict[str, str] = {}
        margins: dict[str, int] = {}
        candidates = tuple(
            [
                Candidate(
                    target_id=each.target_id,
                    provider=each.provider,
                    own=each.own,
                    expected_nanousd=each.expected_nanousd,
                    adequate=each.adequate,
                    max_context_tokens=each.max_context_tokens,
                )
                for each in request.targets
            ]
        )
        for scoring in scorings:
            _ask(scoring, request, candidates, vetoes, margins)
        return Scores(vetoes, margins) if vetoes or margins else NO_SCORES

    return asked


def _ask(
    scoring: Scoring,
    request: ScoredRequest,
    candidates: Sequence[Candidate],
    vetoes: dict[str, str],
    margins: dict[str, int],
) -> None:
    facts = facts_of(request, text=scoring.text)
    try:
        found = scoring.calls.ask_now(lambda: checked_scores(scoring.scorer.score(facts, candidates), candidates))
    except NoAnswer:
        return
    for score in found:
        if score.veto:
            why = " ".join(score.veto.split())[:_MOST_WORDS]
            vetoes.setdefault(score.target_id, f"the plug-in {scoring.calls.name} says: {why}")
        elif score.margin_nanousd:
            margins[score.target_id] = margins.get(score.target_id, 0) + score.margin_nanousd


def facts_of(request: ScoredRequest, *, text: bool) -> RequestFacts:
    """Return the request's facts, with the last user message only where it is granted."""
    return RequestFacts(
        request_id=request.request_id,
        organisation_id=request.organisation_id,
        team_id=request.team_id,
        key_id=request.key_id,
        operation=request.operation,
        model=request.model,
        tier=request.tier,
        stream=request.stream,
        input_tokens=request.input_tokens,
        tools=request.tools,
        images=request.images,
        text=request.text if text else None,
    )
