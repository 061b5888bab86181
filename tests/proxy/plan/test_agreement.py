"""Which two cheap targets stand in for a dear one."""

import math
from itertools import combinations

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from classifier.frontier import alike
from classifier.prediction import Prediction, TargetPrediction
from providers.catalog import Catalog
from providers.target import Deployment
from proxy.plan.agreement import MAX_RATES, AgreementRates, Pair, pair_for
from proxy.plan.answer_form import AskedForm
from proxy.plan.route_plan import Facts, Policy, RoutePlan, plan
from tests.proxy.plan.test_route_plan import price, target

FORM = AskedForm("text")
FACTS = Facts(
    alias="auto",
    tier="interactive",
    needs=frozenset(),
    input_tokens=1_000,
    max_output_tokens=None,
    willing_nanousd=1e10,
)
"""One more good answer may cost 10 dollars; a target of price 1 answers for 0.0011 dollars."""


def outlook(adequate: float) -> TargetPrediction:
    return TargetPrediction(adequate=adequate, low=adequate, high=adequate, output_tokens=100, output_tokens_p90=200)


def planned(chances: list[float], prices: list[int], facts: Facts = FACTS) -> tuple[RoutePlan, Prediction, Catalog]:
    """The last one is what quality is measured against."""
    names = [f"t{at}" for at in range(len(chances))]
    prediction = Prediction(
        complexity=0.5,
        source="onnx",
        expected_output_tokens=100,
        outlooks={name: outlook(chance) for name, chance in zip(names, chances, strict=True)},
    )
    made = {
        name: Deployment(deployment_id=name, target_id=name, kind="scripted", upstream_model="ok") for name in names
    }
    catalog = Catalog(
        targets={
            name: target(name, deployments=(made[name],), price=price(each, each))
            for name, each in zip(names, prices, strict=True)
        }
    )
    policy = Policy(reference=names[-1], max_candidates=16)
    fleet = {name: (each,) for name, each in made.items()}
    return plan(facts, prediction, policy, catalog, fleet), prediction, catalog


def found(
    chances: list[float], prices: list[int], *, willing: float = 1e10, share: float = 1.0, unasked: bool = False
) -> Pair | None:
    facts = msgspec.structs.replace(FACTS, willing_nanousd=willing)
    route, prediction, catalog = planned(chances, prices, facts)
    return pair_for(FORM, route, facts, prediction, catalog, share=share, unasked=unasked)


def test_two_cheap_ones_stand_in_for_a_dear_one() -> None:
    """The likelier one first: its answer is given; the plan goes on as it was where they differ."""
    pair = found([0.8, 0.85, 0.9], [1, 2, 200])
    assert pair is not None
    assert (pair.first.target.target_id, pair.second.target.target_id) == ("t1", "t0")
    assert pair.first.reason == "agreement"
    assert abs(pair.agrees - 0.8 * 0.85) < 1e-9
    assert pair.then is None


def test_a_cheap_choice_is_checked_where_that_is_worth_its_price() -> None:
    """Where a good answer may cost so little that the dear target is not asked, and so much that a second cheap one is."""
    chances, prices = [0.7, 0.75, 0.95], [1, 2, 400]
    route, _, _ = planned(chances, prices, msgspec.structs.replace(FACTS, willing_nanousd=2e9))
    assert route.candidates[0].target.target_id == "t1"
    pair = found(chances, prices, willing=2e9)
    assert pair is not None
    assert pair.then is not None
    assert pair.then.candidates[0].target.target_id == "t2"
    assert pair.then.candidates[0].reason == "escalated"
    assert pair.alone == "t1"
    assert found(chances, prices, willing=1e9) is None


def test_the_pair_of_the_greatest_net_benefit_is_taken_not_the_cheapest_models() -> None:
    """Two that hardly ever agree would mostly be asked in vain."""
    pair = found([0.1, 0.8, 0.85, 0.9], [1, 2, 3, 200])
    assert pair is not None
    assert {pair.first.target.target_id, pair.second.target.target_id} == {"t1", "t2"}


def test_what_seldom_agrees_is_not_asked() -> None:
    """As the team's own answers have shown."""
    assert found([0.8, 0.85, 0.9], [40, 50, 200], share=1.0) is not None
    assert found([0.8, 0.85, 0.9], [40, 50, 200], share=0.3) is None


def test_unasked_both_must_be_hardly_ever_wrong() -> None:
    """And nothing is paid on top of the plan's own choice."""
    assert found([0.8, 0.85, 0.9], [1, 2, 200], unasked=True) is None
    assert found([0.88, 0.89, 0.95], [1, 2, 200], unasked=True) is not None
    checked = [0.87, 0.88, 0.95], [1, 2, 400]
    assert found(*checked, willing=4e9) is not None
    assert found(*checked, willing=4e9, unasked=True) is None


def test_without_a_price_of_a_good_answer_nothing_is_weighed() -> None:
    """As where the baseline model has no row."""
    route, prediction, catalog = planned([0.8, 0.85, 0.9], [1, 2, 200])
    nothing = msgspec.structs.replace(route, willing_nanousd=None)
    assert pair_for(FORM, nothing, FACTS, prediction, catalog) is None


_CHANCES = st.lists(st.floats(0.05, 0.99), min_size=3, max_size=6)


@given(_CHANCES, st.data(), st.floats(1e7, 1e11), st.floats(0, 0.2))
def test_a_pair_is_worth_more_than_the_choice_of_the_plan(
    chances: list[float], data: st.DataObject, willing: float, most_lost: float
) -> None:
    """By the rule that the plan follows, within its bound for one prompt; and no other pair is worth more."""
    prices = data.draw(st.lists(st.integers(1, 100), min_size=len(chances), max_size=len(chances)))
    facts = msgspec.structs.replace(FACTS, willing_nanousd=willing, most_lost=most_lost)
    route, prediction, catalog = planned(chances, prices, facts)
    pair = pair_for(FORM, route, facts, prediction, catalog)
    chance = {name: outlook.adequate for name, outlook in prediction.outlooks.items()}
    own = route.candidates[0].target.target_id
    least = min(chances[-1] - most_lost, max(chances))
    known = {each.target.target_id for each in route.candidates} | {
        each.target_id for each in route.rejected if each.obstacle == "too-hard"
    }

    def compared(one: float) -> float:
        return chances[-1] if abs(one - chances[-1]) <= alike(most_lost) else one

    def told(one: str, other: str, third: str) -> tuple[float, float]:
        a, b, p = chance[one], chance[other], chance[third]
        quality = min(p, a * b + (a * (1 - b) + b * (1 - a)) * p)
        return quality, price_of(catalog, one) + price_of(catalog, other) + (1 - a * b) * price_of(catalog, third)

    worth = {
        (one, other, third): willing * compared(quality) - cost
        for one, other in combinations(sorted(known), 2)
        for third in (each.target.target_id for each in route.candidates)
        if len({chance[one], chance[other], chance[third]}) == 3 and chance[third] >= chance[own]
        for quality, cost in [told(one, other, third)]
        if quality >= least
    }
    # What stands at the very edge of being alike is told apart by rounding alone.
    near = alike(most_lost)
    qualities = [told(*each)[0] for each in worth]
    assume(all(abs(abs(quality - chances[-1]) - near) > 1e-9 for quality in qualities if quality not in chances))
    now = willing * compared(chance[own]) - price_of(catalog, own)
    if pair is None:
        assert max(worth.values(), default=-math.inf) <= now + 1e-6 * willing
        return
    third = own if pair.then is None else pair.then.candidates[0].target.target_id
    quality, cost = told(pair.first.target.target_id, pair.second.target.target_id, third)
    assert quality >= least - 1e-9
    assert willing * compared(quality) - cost > now - 1e-9 * willing
    assert willing * compared(quality) - cost >= max(worth.values(), default=-math.inf) - 1e-6 * willing
    assert (pair.first.adequate or 0) >= (pair.second.adequate or 0)


def price_of(catalog: Catalog, name: str) -> int:
    priced = catalog.targets[name].price
    assert priced is not None
    return priced.tokens_nanousd(FACTS.input_tokens, 100, 0)


def test_how_often_a_team_agrees_is_learned_and_tried_again() -> None:
    """What never agrees falls towards nothing, comes back when it does, and is tried now and then; other teams are not touched."""
    rates = AgreementRates()
    assert rates.share("a", "json") == 1.0
    for _ in range(50):
        rates.note("a", "json", 0.8, agreed=False)
    shares = [rates.share("a", "json") for _ in range(64)]
    assert shares.count(1.0) == 2
    assert min(shares) < 0.15
    assert rates.share("b", "json") == rates.share("a", "text") == 1.0
    for _ in range(200):
        rates.note("a", "json", 0.8, agreed=True)
    assert rates.share("a", "json") > 0.9


def test_what_is_remembered_is_bounded() -> None:
    """However many teams there are."""
    rates = AgreementRates()
    for team in range(MAX_RATES + 10):
        rates.note(f"team_{team}", "json", 0.8, agreed=False)
    assert rates.share("team_0", "json") == 1.0
    assert rates.share(f"team_{MAX_RATES}", "json") < 1.0
