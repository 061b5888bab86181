"""The kind of task of a prompt, for people who look at their own: a multinomial logistic regression on the gist."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

Floats = NDArray[np.float64]

GROUPS: Final[dict[str, str]] = {
    member: kind
    for kind, members in {
        "everyday": "greeting followup-talk clinc_oos advice cooking household sport-and-games lookup travel-facts "
        "history-and-arts chitchat family garden-and-pets travel events agentic-home agentic-everyday tech-everyday "
        "conversation-openers people-and-feelings agentic-mobile agentic-travel-desk agentic-calendar "
        "agentic-shopping common-knowledge",
        "text": "creative brainstorm translate language-and-translation extract classify summarise culture language-learning "
        "philosophy media-and-design editing-tone emails formatting meeting-notes poetry reports scriptwriting speeches "
        "agentic-publishing agentic-content",
        "business": "business marketing-and-sales customer-support logistics-and-manufacturing public-policy finance "
        "accounting-and-investing analysis hr insurance procurement compliance product agentic-support agentic-sales "
        "money-and-banking workday-requests agentic-finance-ops agentic-warehouse consumer-rights contracts-drafting "
        "immigration-paperwork privacy-requests tax agentic-accounting agentic-crm courtroom employment-law patents real-estate "
        "agentic-facilities agentic-recruiting budgeting logistics project-risk negotiation roadmaps",
        "code": "code everyday-code agentic-code web backend systems algorithms embedded ops design networks security data databases "
        "machine-learning followup-code spreadsheets testing agentic-data agentic-servers "
        "coding-requests systems-and-theory short-jobs large-jobs agentic-security cloud-costs code-review data-engineering "
        "embedded-systems frontend incident-response mobile-apps networking sql agentic-it-helpdesk agentic-repo-maintenance "
        "api-integration build-and-ci compilers concurrency cryptography log-reading performance-tuning refactoring "
        "regex-and-parsing shell-and-git spreadsheet-formulas agentic-analytics agentic-release",
        "maths": "math proof puzzle arithmetic geometry calculus number-theory optimisation logic statistics game-theory "
        "operations-research mental-arithmetic",
        "science": "science physics chemistry biology earth-and-space medical medicine-and-psychology engineering economics "
        "building-and-energy health-and-body nature-and-places agentic-research agentic-lab agentic-clinic hardware",
    }.items()
    for member in members.split()
}
"""The kind of each file of the tier set. What is not named here is of no particular kind."""
STRENGTH: Final = 0.05


class TaskKinds(msgspec.Struct, frozen=True):
    """A score for each kind; the highest is the prompt's."""

    names: list[str]
    weights: Floats
    """(gist, kinds)"""
    bias: Floats


def fit(standardised: Floats, kinds: Sequence[str]) -> TaskKinds:
    """Train it on standardised gists of prompts of these files."""
    known = np.array([kind in GROUPS for kind in kinds])
    told = [GROUPS[kind] for kind in kinds if kind in GROUPS]
    model = LogisticRegression(C=STRENGTH, max_iter=300).fit(standardised[known], told)
    return TaskKinds([str(name) for name in model.classes_], model.coef_.T, model.intercept_)
