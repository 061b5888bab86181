"""What is written down of a decision: enough to tell why, and never more than a few hundred bytes."""

import msgspec

from proxy.plan.decision_record import MOST, read, written
from proxy.plan.route_plan import Rejection
from tests.proxy.plan.test_route_plan import GPT, LLAMA, MINI, facts, route


def test_what_was_written_is_read() -> None:
    """Those that could be asked in their order, then those that were passed over, with what they were compared by."""
    plan = route(facts(), 0.5, GPT, LLAMA, MINI)
    told = read(written(plan))
    assert told is not None
    assert [(each.target_id, each.why, each.may_be_asked) for each in told.targets] == [
        ("llama-3-70b", "cheapest-capable", True),
        ("gpt-4o", "fallback", True),
        ("mini", "too-hard", False),
    ]
    assert told.chosen is told.targets[0]
    for each, candidate in zip(told.targets, plan.candidates, strict=False):
        assert (each.expected_nanousd, each.margin_nanousd) == (candidate.expected_nanousd, candidate.margin_nanousd)
    mini = told.targets[2]
    assert mini.expected_nanousd is not None
    assert mini.margin_nanousd == mini.expected_nanousd
    assert mini.detail == ""
    assert told.note(mini) == "complexity 0.50 is above its 0.30"


def test_words_of_older_rows_are_kept() -> None:
    """Rows from when words were written too, and no complexity."""
    text = '[0.03,0.9,[["mini","too-hard",false,null,0.5,1,1,"bought","loses 0.400"]],0]'
    told = read(text)
    assert told is not None
    assert told.note(told.targets[0]) == "loses 0.400"


def test_a_record_is_bounded() -> None:
    """However many targets there are and whatever they say."""
    plan = route(facts(), 0.2, GPT)
    rejected = tuple(Rejection(target_id=f"t{number}", obstacle="tier", detail="x" * 900) for number in range(500))
    text = written(msgspec.structs.replace(plan, rejected=rejected))
    told = read(text)
    assert told is not None
    assert (len(told.targets), told.left_out) == (MOST, 501 - MOST)
    assert len(text) < 4_000


def test_what_nobody_wrote_is_none() -> None:
    """Older rows, and rows of a version that wrote something else."""
    for text in ("", "[", "{}", "[1]", '["a",null,[]]'):
        assert read(text) is None
