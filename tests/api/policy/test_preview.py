"""What a preview says in JSON and in words."""

from decimal import Decimal
from typing import Any

import pytest

from api.policy.preview import MAX_FLOORS, floors_from, preview_as_json
from api.policy.traffic import AutoTraffic, TargetSpend
from cost.reports.usage import UsageSums
from proxy.plan.quality_tolerance import FLOORS
from tests.proxy.made_up_classifier import made_up_sample
from tests.proxy.plan.test_quality_tolerance import BIG, MIDDLE, OWN_POLICY, SMALL, classifier, tolerances
from tests.proxy.plan.test_route_plan import price, target


def test_floors_are_read_as_people_write_them() -> None:
    """A share and a percentage mean the same."""
    assert floors_from(["0.95", "95%", "1"]) == (0.95, 0.95, 1.0)


@pytest.mark.parametrize("text", ["0", "-1", "1.01", "95", "nan", "inf", "high", "", "%"])
def test_what_is_no_floor_is_refused(text: str) -> None:
    """95 without its sign is far more likely a slip than a wish."""
    with pytest.raises(ValueError, match=r"above 0 and at most 1"):
        floors_from([text])


def test_floors_have_a_limit() -> None:
    """Each costs milliseconds."""
    with pytest.raises(ValueError, match="at most"):
        floors_from(["0.5"] * (MAX_FLOORS + 1))


def test_money_is_exact_text_and_the_saving_follows_from_it() -> None:
    """The figures of a row agree with each other."""
    found = preview_as_json(tolerances(classifier()).preview(FLOORS, None), "team_a")
    whole = Decimal(found["reference_usd_per_1000_requests"])
    assert len(found["offers"]) == len(FLOORS)
    for offer in found["offers"]:
        assert isinstance(offer["usd_per_1000_requests"], str)
        saving = 1 - Decimal(offer["usd_per_1000_requests"]) / whole
        assert float(saving) == pytest.approx(offer["saving_share"], abs=1e-4)
        assert sum(offer["shares"].values()) == pytest.approx(1, abs=1e-3)


def test_it_says_what_it_was_computed_on() -> None:
    """Benchmark prompts are told apart from a team's own requests, and both from nothing."""
    counted = tolerances(classifier())
    assert "300 prompts that came with the classifier" in " ".join(
        preview_as_json(counted.preview(FLOORS, None), None)["notes"]
    )
    own = preview_as_json(counted.preview(FLOORS, None, own=made_up_sample(1, 250)), "team_a")
    assert "the team's last 250 requests" in " ".join(own["notes"])
    none = preview_as_json(tolerances(classifier(abilities={})).preview(FLOORS, None), None)
    assert "there is nothing to compare with" in " ".join(none["notes"])


def test_it_names_what_is_missing_and_how_to_apply_a_floor() -> None:
    """Unreached floors, unmeasured targets and the next command are all told."""
    other = target("unmeasured", price=price(1, 1))
    found = tolerances(classifier(), BIG, MIDDLE, SMALL, other).preview([0.99], frozenset({"small", "unmeasured"}))
    notes = " ".join(preview_as_json(found, "team_a")["notes"])
    assert "cannot be kept with these models" in notes
    assert "Not affected by the minimum, because they are not measured: unmeasured." in notes
    assert "weighbridge teams set team_a --quality-floor" in notes
    assert "Nothing was changed" in notes


def test_it_tells_what_our_own_add_and_how_much_they_carry() -> None:
    """Booked and added money side by side; the room, where it is from, and what was asked lately."""
    counted = tolerances(classifier(), policy=OWN_POLICY)
    found = preview_as_json(counted.preview([0.9], None), None)
    assert found["pools"] == [{"pool": "gpus", "replicas": 3, "basis": "planned", "price": "margin"}]
    for offer in found["offers"]:
        assert offer["own_share"] == offer["shares"]["middle"]
        assert Decimal(offer["margin_usd_per_1000_requests"]) <= Decimal(offer["usd_per_1000_requests"])
        (use,) = offer["pools"]
        assert use["carries_requests_per_s"] == pytest.approx(
            3_000 / use["replica_seconds_per_1000_requests"], rel=1e-3
        )
    notes = " ".join(found["notes"])
    assert "the 3 replicas planned under `cost.pools` carry" in notes
    assert "No fleet was asked" in notes
    asked = AutoTraffic(totals=UsageSums(requests=30 * 86_400 // 2), auto_share=1.0)
    live = " ".join(preview_as_json(counted.preview([0.9], None, up={"gpus": 1}), None, asked)["notes"])
    assert "1 replica that takes requests now carries" in live
    assert "Lately 0.5 requests a second" in live
    none = " ".join(preview_as_json(counted.preview([0.9], None, up={"gpus": 0}), None)["notes"])
    assert "gpus has no replica up" in none
    assert "Hours that are up" not in none


def test_it_says_where_preferring_our_own_does_not_pay() -> None:
    """A weak model in the pool makes others dearer that keep the floor; that is told, with both sums."""
    counted = tolerances(classifier(), policy=OWN_POLICY)
    for floor in (0.8, 0.95, 0.99):
        preview = counted.preview([floor], None, current=floor)
        (offer,) = preview.offers
        told = "does not pay" in " ".join(preview_as_json(preview, None)["notes"])
        assert told is (offer.margin_nanousd > offer.full_nanousd)


def test_two_cheap_models_first_are_told_with_price_and_delay_beforehand() -> None:
    """For the minimum that holds: how many requests, what they cost and keep, and how much later an answer comes, where that is known."""
    counted = tolerances(classifier())
    preview = counted.preview([1.0], None, current=1.0)
    found = preview_as_json(preview, "team_a")
    told = found["offers"][0]["two_first"]
    assert 0 < told["asked_again_share"] < told["asked_of_two_share"] <= 1
    assert told["added_s"] is None
    (words,) = (note for note in found["notes"] if note.startswith("Two cheap models first"))
    assert "teams set team_a --escalation agreement" in words
    assert "is not known" in words
    lately = AutoTraffic(totals=UsageSums(), auto_share=None, answer_s={"big": 4.0, "middle": 2.0, "small": 1.0})
    timed = preview_as_json(preview, "team_a", lately)
    two = preview.offers[0].two
    assert two is not None
    assert timed["offers"][0]["two_first"]["added_s"] == pytest.approx(two.added_s(lately.answer_s), abs=1e-3)
    assert any("s later in the mean" in note for note in timed["notes"])


def test_two_cheap_models_first_cost_by_the_bill_where_the_rest_does() -> None:
    """What they would cost and what is paid now stand in one sentence, so a team of shorter requests has both scaled alike."""
    preview = tolerances(classifier()).preview([1.0], None, current=1.0)
    (plain,) = preview_as_json(preview, "team_a")["offers"]
    spend = TargetSpend(served=1_000.0, cost_nanousd=1_000_000.0, cost_error_nanousd=0.0, baseline_nanousd=2_000_000.0)
    billed = AutoTraffic(
        totals=UsageSums(requests=1_000, cost_nanousd=1_000_000), auto_share=1.0, by_target={"big": spend}
    )
    (anchored,) = preview_as_json(preview, "team_a", billed)["offers"]

    def ratio(offer: Any) -> float:
        return float(offer["two_first"]["usd_per_1000_requests"]) / float(offer["usd_per_1000_requests"])

    assert anchored["usd_per_1000_requests"] != plain["usd_per_1000_requests"]
    assert ratio(anchored) == pytest.approx(ratio(plain), rel=1e-3)
