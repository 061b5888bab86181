"""How much of an answer is held on to, and of whom."""

import msgspec
import pytest

from accounts.caller import Learning, TeamSettings
from classifier.prediction import Prediction
from proxy.plan.escalation_rules import kept_bytes, portion_bytes
from tests.proxy.contexts import ALICE

PREDICTION = Prediction(complexity=0.5, source="heuristic", expected_output_tokens=9)


def test_what_is_kept_of_answers_has_a_bound_for_all_together() -> None:
    """Few requests keep what each may; of thousands each keeps its part, so that all keep no more than the bound."""
    assert portion_bytes(1_000_000, 1) == portion_bytes(1_000_000, 200) == 1_000_000
    together = [count * portion_bytes(1_000_000, count) for count in (1, 300, 4_096, 1_000_000)]
    assert max(together) <= 256 * 1024 * 1024


@pytest.mark.parametrize(("learning", "classified", "keeps"), [("off", True, 0), ("numbers", False, 0)])
def test_nothing_is_kept_that_nothing_is_learnt_from(learning: Learning, classified: bool, keeps: int) -> None:
    """A team that keeps learning off, and a request that named its model."""
    caller = msgspec.structs.replace(ALICE, settings=TeamSettings(learning=learning))
    assert kept_bytes(caller, PREDICTION if classified else None, 1, compared=True) == keeps


def test_a_comparison_keeps_more() -> None:
    """A judge is shown the whole answer."""
    caller = msgspec.structs.replace(ALICE, settings=TeamSettings(learning="numbers"))
    few, more = (kept_bytes(caller, PREDICTION, 1, compared=compared) for compared in (False, True))
    assert 0 < few < more
