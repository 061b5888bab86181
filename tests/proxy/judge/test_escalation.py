"""How often a better target may be asked."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.judge.escalation import EscalationAllowance
from proxy.plan.pipeline_config import EscalationRules


@given(st.lists(st.booleans(), max_size=300), st.floats(0, 1))
def test_escalations_stay_within_the_share_and_the_burst(weak: list[bool], share: float) -> None:
    """Over any run of requests, however many answers are weak."""
    allowance, rules, made = EscalationAllowance(), EscalationRules(max_share=share), 0
    for number, each in enumerate(weak, 1):
        allowance.request(rules)
        if each and allowance.try_begin(rules):
            allowance.end()
            made += 1
        assert made <= 20 + share * number + 1e-6
        assert share > 0 or not made


def test_no_more_run_at_once_than_allowed() -> None:
    """One that ends makes room for another."""
    allowance, rules = EscalationAllowance(), EscalationRules(max_running=2)
    assert [allowance.try_begin(rules) for _ in range(3)] == [True, True, False]
    allowance.end()
    assert allowance.try_begin(rules)
