"""From a floor to what a good answer may cost: what the curve promises is what planning does."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.tuning import Ability, Tuning
from providers.catalog import Catalog
from providers.target import Target
from proxy.plan.agreement import pair_for
from proxy.plan.answer_form import AskedForm
from proxy.plan.marginal_cost import Room, Rooms
from proxy.plan.quality_tolerance import FLOORS, MAX_CACHED, NO_CURVE, Tolerances, TwoFirst, learn_from_own_requests
from proxy.plan.route_plan import Facts, OwnPool, Policy, plan
from tests.examples import examples
from tests.proxy.made_up_classifier import MadeUpClassifier, MadeUpSample, made_up_sample
from tests.proxy.plan.test_route_plan import price, target

BIG = target("big", price=price(2.5, 10), max_context_tokens=128_000)
MIDDLE = target("middle", price=price(0.8, 0.8), capability=0.6)
SMALL = target("small", price=price(0.1, 0.4), capability=0.3)
ABILITIES = {"big": (3.0, (0.5, 0.0)), "middle": (1.5, (1.0, 0.5)), "small": (0.5, (2.0, -1.0))}
POLICY = Policy(reference="big", quality_floor=0.95)


def catalog(*targets: Target) -> Catalog:
    return Catalog(targets={each.target_id: each for each in targets})


def tolerances(
    classifier: MadeUpClassifier,
    *targets: Target,
    policy: Policy = POLICY,
    catalog_of: tuple[Target, ...] = (BIG, MIDDLE, SMALL),
) -> Tolerances:
    return Tolerances(catalog=catalog(*(targets or catalog_of)), policy=policy, classifier=classifier)


def classifier(**changes: Any) -> MadeUpClassifier:
    return MadeUpClassifier(changes.pop("abilities", ABILITIES), **{"sample": made_up_sample(), **changes})


@pytest.mark.parametrize("floor", [0.8, 0.9, 0.95, 0.99, 1.0])
def test_planning_at_the_willingness_keeps_what_the_preview_says(floor: float) -> None:
    """Each prompt of the sample, planned one by one, goes where the curve says, for the money that it says."""
    sample, lengths = made_up_sample(), {"middle": 1.5, "small": 0.8}
    small = target("small", price=price(0.1, 0.4), routing_weight=0.25)
    weighs = classifier(sample=sample, lengths=lengths)
    counted = tolerances(weighs, BIG, MIDDLE, small)
    (offer,) = counted.preview([floor], None, current=floor).offers
    assert offer.willing_nanousd == counted.of(floor, None).with_room
    spent, kept, shares = 0.0, 0.0, dict.fromkeys(ABILITIES, 0.0)
    weight = sample.weights / sample.weights.sum()
    everything = catalog(BIG, MIDDLE, small)
    fleet = {each.target_id: each.deployments for each in everything}
    for row in range(len(weight)):
        prediction = weighs.predicted(sample.vectors[row], int(sample.output_tokens[row]))
        facts = Facts(
            alias="auto",
            tier="interactive",
            needs=frozenset(),
            input_tokens=int(sample.input_tokens[row]),
            max_output_tokens=None,
            willing_nanousd=offer.willing_nanousd,
            most_lost=counted.of(floor, None).most_lost,
        )
        first = plan(facts, prediction, POLICY, everything, fleet).candidates[0]
        assert first.expected_nanousd is not None
        assert first.adequate is not None
        spent += weight[row] * first.expected_nanousd
        kept += weight[row] * first.adequate / (weight @ weighs.adequacies(sample.vectors, ["big"])[:, 0])
        shares[first.target.target_id] += weight[row]
    assert offer.kept == pytest.approx(kept)
    assert offer.cost_nanousd == pytest.approx(1_000 * spent, rel=1e-9)
    assert offer.shares == pytest.approx(shares)
    assert kept >= floor - 1e-6


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 1_000), st.floats(0.5, 1.0), st.floats(0.5, 1.0))
def test_a_stricter_floor_never_saves_more(seed: int, one: float, two: float) -> None:
    """Keeping more costs more, whatever the prompts are."""
    strict, lax = max(one, two), min(one, two)
    offers = tolerances(classifier(sample=made_up_sample(seed, 40))).preview([strict, lax], None).offers
    cost = {offer.floor: offer.cost_nanousd for offer in offers}
    assert cost[strict] >= cost[lax]


def test_a_willingness_is_computed_once() -> None:
    """The second request with the same floor is a look-up, and None is the gateway's own floor."""
    weighs = classifier()
    counted = tolerances(weighs)
    first, before = counted.of(None, None), weighs.weighed
    assert counted.of(0.95, None) == first
    assert weighs.weighed == before
    assert counted.of(0.9, None) < first


def test_what_was_learned_counts_once_it_is_computed_anew() -> None:
    """A tuning that finds the small model better lets it have more for the same floor."""
    weighs = classifier()
    before = tolerances(weighs)
    (old,) = before.preview([0.95], None).offers
    better = {"small": Ability(weights=[2.0, -1.0], bias=2.5)}
    weighs.tune(Tuning(version=1, artifact="made-up", abilities=better))
    (new,) = before.renewed().preview([0.95], None).offers
    assert new.shares["small"] > old.shares["small"]


def test_what_is_remembered_has_a_limit() -> None:
    """Nobody can fill the memory by asking for many floors."""
    counted = tolerances(classifier(sample=made_up_sample(prompts=5)))
    for step in range(MAX_CACHED + 10):
        counted.of(0.5 + step / 10_000, None)
        counted.of(0.5, None, f"team_{step}")
    assert len(counted._known) == len(counted._requested) == MAX_CACHED


def test_tables_of_many_models_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has a cell for each prompt and target: with hundreds of targets, eight of them would be half a gigabyte."""
    weighs = classifier()
    counted = tolerances(weighs)
    rows = len(made_up_sample().weights)
    monkeypatch.setattr("proxy.plan.quality_tolerance.MAX_CELLS", 3 * rows)
    for allowed in (frozenset({"big", "small"}), frozenset({"big", "middle"}), frozenset({"big", "small"})):
        before = weighs.weighed
        counted.preview([0.95], allowed)
        assert weighs.weighed > before
        before = weighs.weighed
        counted.preview([0.9], allowed)
        assert weighs.weighed == before


def test_teams_without_requests_of_their_own_share_the_sum() -> None:
    """The gateway's own floor is computed at the start, and the sample is weighed once for every other floor too."""
    weighs = classifier()
    counted = tolerances(weighs)
    before = weighs.weighed
    for index in range(50):
        counted.of(0.95, None, f"team_{index}")
    assert weighs.weighed == before
    counted.of(0.9, None, "team_a")
    counted.of(0.8, None, "team_b")
    assert weighs.weighed == before


def test_a_team_that_may_not_use_the_reference_is_still_held_against_it() -> None:
    """What was promised is a share of the reference's quality, and the offer says when it cannot be kept."""
    found = tolerances(classifier()).preview([0.99], frozenset({"small", "middle"}))
    assert found.reference == ("big",)
    strict = next(offer for offer in found.offers if offer.floor == 0.99)
    assert set(strict.shares) == {"small", "middle"}
    assert not strict.reached
    assert strict.kept < 0.99


def test_prompts_that_do_not_fit_a_target_do_not_count_for_it() -> None:
    """A small context takes only what fits, however cheap the target is."""
    narrow = target("small", price=price(0.1, 0.4), max_context_tokens=100)
    found = tolerances(classifier(), BIG, narrow).preview([0.01], None)
    fitting = made_up_sample()
    share = fitting.weights[fitting.input_tokens < 100].sum() / fitting.weights.sum()
    assert found.offers[0].shares["small"] == pytest.approx(share)


async def test_a_teams_own_requests_stand_in_for_the_sample() -> None:
    """Once learned, what one team pays comes from its own mix, and nobody else's changes."""
    counted = tolerances(classifier())
    before = counted.of(0.95, None, "team_a"), counted.of(0.95, None, "team_b")
    assert before[0] == before[1]
    assert counted.teams == ("team_b", "team_a")
    easy: MadeUpSample | None = made_up_sample(1)
    assert easy is not None
    easy.vectors[:, 0] += 3

    async def read(team_id: str) -> MadeUpSample | None:
        return easy if team_id == "team_a" else None

    await learn_from_own_requests(counted, read, pause_s=0)
    assert counted.of(0.95, None, "team_b") == before[1]
    own = counted.preview([], None, own=easy)
    assert own.basis == "own"
    assert own.current_willing_nanousd == counted.of(0.95, None, "team_a").with_room != before[0].with_room
    easy = None
    await learn_from_own_requests(counted, read, pause_s=0)
    assert counted.of(0.95, None, "team_a") == before[0]


@pytest.mark.parametrize(
    ("weighs", "policy"),
    [
        (classifier(sample=None), POLICY),
        (classifier(abilities={}), POLICY),
        (classifier(abilities={"small": (0.0, (1.0, 1.0))}), POLICY),
        (classifier(abilities={"big": (float("nan"), (1.0, 1.0))}), POLICY),
        (classifier(), Policy(auto_targets=(), quality_floor=0.95)),
    ],
)
def test_without_a_curve_quality_comes_first(weighs: MadeUpClassifier, policy: Policy) -> None:
    """No sample, no abilities, no reference, or numbers that are none: the plain rule, and a preview that offers nothing."""
    counted = tolerances(weighs, policy=policy)
    assert counted.of(None, None)[:2] == NO_CURVE[:2]
    assert counted.of(1.0, None).most_lost == 0, "a minimum of 1 tells all chances apart, with a curve or without"
    found = counted.preview(FLOORS, None)
    assert (found.basis, found.offers, found.current_willing_nanousd) == ("none", (), NO_CURVE.by_average)


def test_a_preview_marks_the_floor_that_holds_and_names_what_it_leaves_out() -> None:
    """The row that is in effect is among the rows, also when nobody asked for it."""
    other = target("unmeasured", price=price(1, 1), capability=0.9)
    found = tolerances(classifier(), BIG, SMALL, other).preview([0.9, 1.0], None, current=0.93)
    assert [(offer.floor, offer.current) for offer in found.offers] == [(0.9, False), (0.93, True), (1.0, False)]
    assert found.unmeasured == ("unmeasured",)
    assert found.requests == 300
    assert all("unmeasured" not in offer.shares for offer in found.offers)


def test_what_is_not_asked_for_is_left_out_and_the_rest_stays() -> None:
    """Moves of some targets alone, and two targets first at the current floor alone."""
    counted = tolerances(classifier(sample=made_up_sample(3, 40)))
    whole = counted.preview(FLOORS, None, current=0.95)
    part = counted.preview(FLOORS, None, current=0.95, moved={"small"}, two_at_all=False)
    for one, other in zip(part.offers, whole.offers, strict=True):
        assert one.moves == {"small": other.moves["small"]}
        assert one.two == (other.two if other.current else None)
        assert msgspec.structs.replace(one, moves={}, two=None) == msgspec.structs.replace(other, moves={}, two=None)
    assert len(whole.offers[0].moves) > 1


def test_savings_are_against_the_reference_for_everything() -> None:
    """Keeping everything with the reference alone saves nothing."""
    found = tolerances(classifier(), BIG).preview([0.95], None)
    assert found.offers[0].saving == pytest.approx(0.0)
    assert found.offers[0].cost_nanousd == found.reference_cost_nanousd
    assert np.isclose(found.offers[0].kept, 1.0)


OWN_POOL = OwnPool(name="gpus", targets=("middle",), replicas=3, input_s=100.0, output_s=400.0)
OWN_POLICY = Policy(reference="big", quality_floor=0.95, pooled=frozenset({"middle"}), pools=(OWN_POOL,))


@pytest.mark.parametrize("floor", [0.8, 0.95, 1.0])
@pytest.mark.parametrize("wait_s", [0.0, 2.0])
def test_either_order_keeps_the_floor_by_itself(floor: float, wait_s: float) -> None:
    """Planned one by one, with room and without: as the preview says, and never less than the floor."""
    sample, weighs = made_up_sample(), classifier()
    counted = tolerances(weighs, policy=OWN_POLICY)
    willing = counted.of(floor, None)
    (offer,) = counted.preview([floor], None, current=floor).offers
    everything = catalog(BIG, MIDDLE, SMALL)
    fleet = {each.target_id: each.deployments for each in everything}
    weight = sample.weights / sample.weights.sum()
    booked = added = kept = own = 0.0
    for row in range(len(weight)):
        facts = Facts(
            alias="auto",
            tier="interactive",
            needs=frozenset(),
            input_tokens=int(sample.input_tokens[row]),
            max_output_tokens=None,
            willing_nanousd=willing.by_average,
            willing_with_room_nanousd=willing.with_room,
            most_lost=willing.most_lost,
        )
        prediction = weighs.predicted(sample.vectors[row], int(sample.output_tokens[row]))
        rooms = Rooms({"middle": Room(wait_s, 1.0)}, 0.0)
        first = plan(facts, prediction, OWN_POLICY, everything, fleet, rooms=rooms).candidates[0]
        assert first.expected_nanousd is not None
        assert first.margin_nanousd is not None
        assert first.adequate is not None
        booked += weight[row] * first.expected_nanousd
        added += weight[row] * first.margin_nanousd
        kept += weight[row] * first.adequate / (weight @ weighs.adequacies(sample.vectors, ["big"])[:, 0])
        own += weight[row] * (first.target.target_id == "middle")
    if wait_s:
        assert kept >= floor - 0.01
        return
    assert kept == pytest.approx(offer.kept)
    assert kept >= floor - 1e-6
    assert offer.cost_nanousd == pytest.approx(1_000 * booked, rel=1e-6)
    assert offer.margin_nanousd == pytest.approx(1_000 * added, rel=1e-6)
    assert offer.own_share == pytest.approx(own)
    assert offer.willing_nanousd == willing.with_room
    assert offer.full_willing_nanousd == willing.by_average


def test_a_preview_tells_how_much_the_pool_carries() -> None:
    """By the measured seconds of a replica: twice the replicas carry twice as much; those that are watched count first."""
    counted = tolerances(classifier(), policy=OWN_POLICY)
    planned = counted.preview([0.9], None)
    (pool,), (live,) = planned.pools, counted.preview([0.9], None, up={"gpus": 6}).pools
    assert (pool.name, pool.replicas, pool.live, live.replicas, live.live) == ("gpus", 3, False, 6, True)
    offer = planned.offers[0]
    seconds = offer.replica_s["gpus"]
    assert seconds > 0
    assert pool.carries_per_s(seconds) == pytest.approx(3_000 / seconds)
    assert live.carries_per_s(seconds) == pytest.approx(6_000 / seconds)
    assert pool.carries_per_s(0.0) is None


def test_a_pool_without_hours_is_compared_by_its_average() -> None:
    """None planned and none up: the figures are those of average prices, as with `price: average`."""
    idle = tolerances(classifier(), policy=OWN_POLICY).preview([0.9], None, up={"gpus": 0}).offers[0]
    fixed = msgspec.structs.replace(OWN_POLICY, pools=(msgspec.structs.replace(OWN_POOL, by_margin=False),))
    average = tolerances(classifier(), policy=fixed).preview([0.9], None).offers[0]
    assert (idle.shares, idle.cost_nanousd) == (average.shares, average.cost_nanousd)
    assert average.margin_nanousd == average.cost_nanousd == average.full_nanousd
    assert tolerances(classifier(), policy=OWN_POLICY).preview([0.9], None).offers[0].own_share > average.own_share


@pytest.mark.parametrize("floor", [0.9, 1.0])
def test_two_first_in_the_preview_is_what_planning_does(floor: float) -> None:
    """Each prompt of the sample, planned one by one, is asked of the pair that the preview counts, at the price that it says."""
    sample = made_up_sample()
    weighs = classifier(sample=sample)
    counted = tolerances(weighs)
    (offer,) = counted.preview([floor], None, current=floor).offers
    assert offer.two is not None
    weight = sample.weights / sample.weights.sum()
    everything = catalog(BIG, MIDDLE, SMALL)
    fleet = {each.target_id: each.deployments for each in everything}
    asked = again = 0.0
    for row in range(len(weight)):
        prediction = weighs.predicted(sample.vectors[row], int(sample.output_tokens[row]))
        facts = Facts(
            alias="auto",
            tier="interactive",
            needs=frozenset(),
            input_tokens=int(sample.input_tokens[row]),
            max_output_tokens=None,
            willing_nanousd=offer.willing_nanousd,
            most_lost=counted.of(floor, None).most_lost,
        )
        route = plan(facts, prediction, POLICY, everything, fleet)
        pair = pair_for(AskedForm("text"), route, facts, prediction, everything)
        if pair is not None:
            asked += weight[row]
            again += weight[row] * (1 - pair.agrees)
    assert asked == pytest.approx(offer.two.asked, abs=1e-6)
    assert again == pytest.approx(offer.two.again, abs=1e-6)
    assert offer.two.asked > 0
    assert offer.two.kept_low < offer.two.kept_high


def test_how_much_later_two_first_come_is_known_where_every_speed_is() -> None:
    """The slower of the two in place of what is asked at once, and the better one's time for those that are asked again."""
    two = TwoFirst(
        asked=0.5, again=0.2, cost_nanousd=1, kept_low=1.0, kept_high=1.0, ways=(("a", "b", "big", "big", 0.5, 0.2),)
    )
    assert two.added_s({"a": 1.0, "b": 3.0, "big": 4.0}) == pytest.approx(0.5 * (3.0 - 4.0) + 0.2 * 4.0)
    assert two.added_s({"a": 1.0, "big": 4.0}) is None
