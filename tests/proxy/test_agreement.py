"""Which two cheap targets stand in for a dear one."""

from itertools import combinations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from classifier.pairs import expected_quality
from classifier.prediction import Prediction, TargetPrediction
from providers.catalog import Catalog
from providers.target import Deployment
from proxy.agreement import MAX_RATES, AgreementRates, Pair, pair_for
from proxy.answers.comparable import AskedForm
from proxy.policy import Facts, Policy, RoutePlan, plan
from tests.proxy.test_policy import price, target

FORM = AskedForm("text")
FACTS = Facts(
    alias="auto", tier="interactive", needs=frozenset(), input_tokens=1_000, max_output_tokens=None, tolerance=0.0
)


def outlook(adequate: float) -> TargetPrediction:
    return TargetPrediction(adequate=adequate, low=adequate, high=adequate, output_tokens=100, output_tokens_p90=200)


def planned(chances: list[float], prices: list[int], tolerance: float = 0.0) -> tuple[RoutePlan, Prediction, Catalog]:
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
    facts = msgspec.structs.replace(FACTS, tolerance=tolerance)
    policy = Policy(reference=names[-1], max_candidates=16)
    fleet = {name: (each,) for name, each in made.items()}
    return plan(facts, prediction, policy, catalog, fleet), prediction, catalog


def found(chances: list[float], prices: list[int], *, tolerance: float = 0.0, share: float = 1.0) -> Pair | None:
    route, prediction, catalog = planned(chances, prices, tolerance)
    return pair_for(FORM, route, FACTS, prediction, catalog, share=share)


def test_two_cheap_ones_stand_in_for_a_dear_one() -> None:
    """The likelier one first: its answer is given."""
    pair = found([0.8, 0.85, 0.9], [1, 2, 20])
    assert pair is not None
    assert (pair.first.target.target_id, pair.second.target.target_id) == ("t1", "t0")
    assert pair.first.reason == "agreement"
    assert abs(pair.agrees - 0.8 * 0.85) < 1e-9


def test_the_pair_of_least_cost_is_taken_not_the_cheapest_models() -> None:
    """Two that hardly ever agree would mostly be asked in vain."""
    pair = found([0.1, 0.8, 0.85, 0.9], [1, 2, 3, 40])
    assert pair is not None
    assert {pair.first.target.target_id, pair.second.target.target_id} == {"t1", "t2"}


def test_what_seldom_agrees_is_not_asked() -> None:
    """As the team's own answers have shown."""
    assert found([0.8, 0.85, 0.9], [4, 5, 20], share=1.0) is not None
    assert found([0.8, 0.85, 0.9], [4, 5, 20], share=0.3) is None


_CHANCES = st.lists(st.floats(0.05, 0.99), min_size=3, max_size=6)


@given(_CHANCES, st.data(), st.floats(0, 0.1))
def test_a_pair_keeps_the_minimum_and_costs_less(chances: list[float], data: st.DataObject, tolerance: float) -> None:
    """Whatever the targets, by the worse assumption of each; and no pair that does both costs less than the one that is taken."""
    prices = data.draw(st.lists(st.integers(1, 100), min_size=len(chances), max_size=len(chances)))
    route, prediction, catalog = planned(chances, prices, tolerance)
    pair = pair_for(FORM, route, FACTS, prediction, catalog)
    first = route.candidates[0]
    right, cost = first.adequate or 0.0, first.margin_nanousd or 0
    least = min(chances[-1] - tolerance, right)

    def told(names: tuple[str, str]) -> tuple[float, float]:
        both = [prediction.outlooks[name].adequate for name in names]
        costs = [price_of(catalog, name) for name in names]
        return expected_quality(both[0], both[1], right), sum(costs) + (1 - both[0] * both[1]) * cost

    paying = {
        names: told(names)[1]
        for names in combinations([each for each in catalog.targets if each != first.target.target_id], 2)
        if 2 * max(price_of(catalog, name) for name in names) < cost
        and len({prediction.outlooks[name].adequate for name in (*names, first.target.target_id)}) == 3
        and told(names)[0] >= least
        and told(names)[1] < cost
    }
    if pair is None:
        assert not paying
        return
    quality, expected = told((pair.first.target.target_id, pair.second.target.target_id))
    assert quality >= least
    assert expected <= min(paying.values()) + 1e-6
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
