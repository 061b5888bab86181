"""Planning is pure: who may serve, in which order, and why."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.prediction import Prediction, TargetPrediction
from cost.prices import Price
from providers.breaker import Absence
from providers.catalog import Catalog
from providers.target import Capability, Deployment, Target
from proxy.errors import ContextTooLong, ModelNotFound, NoEligibleTarget, TargetsUnavailable, error_reply
from proxy.plan.decision_record import compared
from proxy.plan.marginal_cost import NO_ROOMS, Room, Rooms, place_of
from proxy.plan.route_plan import (
    Facts,
    Policy,
    RoutePlan,
    absent,
    choosable,
    eligible_targets,
    held_out,
    most_nanousd,
    plan,
    reference_targets,
)
from proxy.plan.scores import Scores
from proxy.plan.session_affinity import Sticky, TurnChoice
from proxy.plan.tool_loop import ToolLoop

ALL: frozenset[Capability] = frozenset({"vision", "tools", "json"})


def price(input_usd: float, output_usd: float, cached: float | None = None) -> Price:
    """Dollars per million tokens."""
    cached_usd = input_usd if cached is None else cached
    return Price(
        version="test",
        input_nanousd=round(input_usd * 1e9),
        output_nanousd=round(output_usd * 1e9),
        cached_input_nanousd=round(cached_usd * 1e9),
        cache_write_nanousd=round(input_usd * 1e9),
    )


def target(name: str, **changes: Any) -> Target:
    deployment = Deployment(deployment_id=f"{name}/a", target_id=name, kind="scripted", upstream_model=name)
    fields: dict[str, Any] = {
        "target_id": name,
        "provider": "test",
        "tiers": frozenset({"interactive", "batch"}),
        "price": price(1, 1),
        "max_context_tokens": 8_192,
        "max_output_tokens": 4_096,
        "capabilities": ALL,
        "capability": 1.0,
        "routing_weight": 1.0,
        "deployments": (deployment,),
    }
    return Target(**{**fields, **changes})


def declared(each: Target) -> float:
    assert each.capability is not None
    return each.capability


LLAMA = target("llama-3-70b", price=price(0.4, 0.4), capability=0.6)
GPT = target("gpt-4o", price=price(2.5, 10, 1.25), max_context_tokens=128_000)
MINI = target("mini", price=price(0.15, 0.6), capability=0.3)


def facts(**changes: Any) -> Facts:
    fields: dict[str, Any] = {
        "alias": "auto",
        "tier": "interactive",
        "needs": frozenset(),
        "input_tokens": 100,
        "max_output_tokens": None,
    }
    return Facts(**{**fields, **changes})


def hard(complexity: float, output: int = 100) -> Prediction:
    return Prediction(complexity=complexity, source="heuristic", expected_output_tokens=output)


def route(
    request: Facts,
    complexity: float,
    *targets: Target,
    policy: Policy | None = None,
    sticky: Sticky | None = None,
    down: tuple[str, ...] = (),
    rooms: Rooms = NO_ROOMS,
    turn: TurnChoice | None = None,
    absences: Mapping[str, Absence] = {},
) -> RoutePlan:
    catalog = Catalog(targets={each.target_id: each for each in targets})
    fleet = {each.target_id: () if each.target_id in down else each.deployments for each in targets}
    return plan(request, hard(complexity), policy or Policy(), catalog, fleet, sticky, rooms, turn, absences=absences)


def names(found: RoutePlan) -> list[str]:
    return [candidate.target.target_id for candidate in found.candidates]


def obstacles(found: RoutePlan) -> Mapping[str, str]:
    return {rejection.target_id: rejection.obstacle for rejection in found.rejected}


def test_a_pool_without_anybody_hears_of_what_it_misses() -> None:
    """What would have gone there first, and what `auto` may send there; not what another target was asked for before."""
    own = msgspec.structs.replace(LLAMA, pool="h100", deployments=())
    catalog = Catalog(targets={each.target_id: each for each in (GPT, own)})
    fleet = {"gpt-4o": GPT.deployments, own.target_id: ()}
    policy = Policy(fallbacks={"gpt-4o": (own.target_id,)})
    for alias, missed in (("auto", [own]), (own.target_id, [own]), ("gpt-4o", [])):
        assert absent(facts(alias=alias), policy, catalog, fleet) == missed


@pytest.mark.parametrize(
    ("complexity", "expected"),
    [(0.2, ["mini", "llama-3-70b", "gpt-4o"]), (0.5, ["llama-3-70b", "gpt-4o"]), (0.9, ["gpt-4o"])],
)
def test_the_cheapest_capable_target_leads(complexity: float, expected: list[str]) -> None:
    """Harder prompts lose the cheap targets one by one; dearer capable ones follow as fallbacks."""
    found = route(facts(), complexity, GPT, LLAMA, MINI)
    assert names(found) == expected
    assert found.candidates[0].reason == "cheapest-capable"
    assert all(candidate.reason == "fallback" for candidate in found.candidates[1:])


def test_when_none_is_capable_the_most_capable_leads() -> None:
    """A prompt harder than every target is still answered, and the reason says so."""
    found = route(facts(), 0.9, LLAMA, MINI)
    assert (names(found), found.candidates[0].reason) == (["llama-3-70b"], "most-capable")
    assert obstacles(found) == {"mini": "too-hard"}


def test_degrading_adds_the_less_capable_after_the_capable() -> None:
    """With `degrade` a weak answer is preferred to none."""
    found = route(facts(), 0.9, LLAMA, GPT, MINI, policy=Policy(degrade=True))
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [
        ("gpt-4o", "cheapest-capable"),
        ("llama-3-70b", "degraded"),
        ("mini", "degraded"),
    ]


def test_the_shift_moves_every_threshold() -> None:
    """A stricter house sends the same prompt to a dearer target."""
    assert names(route(facts(), 0.5, GPT, LLAMA, policy=Policy(capability_shift=-0.2)))[0] == "gpt-4o"


@pytest.mark.parametrize(
    ("change", "wanted", "obstacle"),
    [
        ({"tiers": frozenset({"batch"})}, {}, "tier"),
        ({"capabilities": frozenset()}, {"needs": frozenset({"tools"})}, "capability-missing"),
        ({}, {"input_tokens": 10_000}, "context"),
        ({}, {"max_output_tokens": 9_000}, "context"),
        ({"price": None}, {}, "unpriced"),
        ({"routing_weight": 0.0}, {}, "weight-zero"),
        ({}, {"allowed_models": frozenset({"gpt-4o"})}, "not-allowed"),
    ],
)
def test_what_cannot_serve_is_filtered_with_its_reason(
    change: dict[str, Any], wanted: dict[str, Any], obstacle: str
) -> None:
    """Each filter names itself."""
    found = route(facts(**wanted), 0.1, target("x", **change), GPT)
    assert names(found) == ["gpt-4o"]
    assert obstacles(found) == {"x": obstacle}


def test_an_ejected_target_is_passed_over() -> None:
    """An open breaker counts as a filter."""
    assert names(route(facts(), 0.1, LLAMA, GPT, down=("llama-3-70b",))) == ["gpt-4o"]


def test_nothing_eligible_says_what_kind_of_nothing() -> None:
    """Too long, incapable and unavailable are different errors."""
    with pytest.raises(ContextTooLong):
        route(facts(input_tokens=200_000), 0.1, LLAMA, GPT)
    with pytest.raises(NoEligibleTarget, match="vision"):
        route(facts(needs=frozenset({"vision"})), 0.1, target("x", capabilities=frozenset()))
    with pytest.raises(TargetsUnavailable):
        route(facts(), 0.1, LLAMA, down=("llama-3-70b",))


@pytest.mark.parametrize(
    ("absences", "status", "code", "wait_s", "words"),
    [
        (
            {"llama-3-70b": Absence("pace", "rate", 12.0), "gpt-4o": Absence("operator", "credit", 30.0)},
            429,
            "upstream_rate_limited",
            b"12",
            "llama-3-70b: its provider's rate limit is reached for another 12 s; gpt-4o: its provider refuses this gateway, which",
        ),
        (
            {"llama-3-70b": Absence("pace", "rate", 12.0), "gpt-4o": Absence("health", "failing", 3.0)},
            429,
            "upstream_rate_limited",
            b"3",
            "gpt-4o: every deployment is ejected",
        ),
        (
            {"gpt-4o": Absence("operator", "quota", 0.0)},
            503,
            "targets_unavailable",
            b"5",
            "which its operators must mend",
        ),
    ],
)
def test_why_nothing_can_be_called_is_told(
    absences: Mapping[str, Absence], status: int, code: str, wait_s: bytes, words: str
) -> None:
    """Where a provider's pace alone is waited for it is a 429, as its own was, with the time until something is called again."""
    with pytest.raises(TargetsUnavailable) as refused:
        route(facts(), 0.1, LLAMA, GPT, down=("llama-3-70b", "gpt-4o"), absences=absences)
    told = error_reply(refused.value)
    assert (told.status, told.code) == (status, code)
    assert dict(told.headers)[b"retry-after"] == wait_s
    assert words in told.message


def test_a_named_target_is_taken_whatever_the_prompt() -> None:
    """A caller who names a model gets it, with its configured fallbacks behind it."""
    found = route(facts(alias="mini"), 0.99, MINI, GPT, policy=Policy(fallbacks={"mini": ("gpt-4o",)}))
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [
        ("mini", "named"),
        ("gpt-4o", "fallback"),
    ]


def test_an_alias_stands_for_its_targets_in_order() -> None:
    """Aliases keep the order that the operator wrote."""
    found = route(
        facts(alias="smart"), 0.0, MINI, GPT, LLAMA, policy=Policy(aliases={"smart": ("gpt-4o", "llama-3-70b")})
    )
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [
        ("gpt-4o", "alias"),
        ("llama-3-70b", "fallback"),
    ]


@pytest.mark.parametrize("alias", ["nope", "gpt-4o"])
@pytest.mark.parametrize("fallbacks", [{}, {"gpt-4o": ("mini",)}])
def test_an_unknown_and_a_forbidden_model_look_the_same(alias: str, fallbacks: dict[str, tuple[str, ...]]) -> None:
    """A team cannot learn which models exist that it may not use, nor reach others by their names."""
    asked, policy = facts(alias=alias, allowed_models=frozenset({"mini"})), Policy(fallbacks=fallbacks)
    with pytest.raises(ModelNotFound):
        route(asked, 0.0, MINI, GPT, policy=policy)


def test_a_conversation_stays_while_its_cache_is_worth_more() -> None:
    """60,000 cached tokens make the dear target the cheaper one; a cold cheap one would cost more."""
    long, cheap = facts(input_tokens=60_000), target("cheap", price=price(2.0, 8), max_context_tokens=128_000)
    moved = route(long, 0.5, cheap, GPT)
    stayed = route(long, 0.5, cheap, GPT, sticky=Sticky("gpt-4o", 59_000))
    assert (names(moved)[0], names(stayed)[0], stayed.candidates[0].reason) == ("cheap", "gpt-4o", "prompt-cache")


def test_a_cache_is_no_reason_to_stay_with_an_incapable_target() -> None:
    """A conversation that turns hard moves up, whatever is lost."""
    found = route(facts(input_tokens=4_000), 0.9, LLAMA, GPT, sticky=Sticky("llama-3-70b", 3_900))
    assert names(found) == ["gpt-4o"]


complexities = st.floats(0, 1)
fleets = st.lists(
    st.builds(
        lambda index, inp, out, ability, weight: target(
            f"t{index}", price=price(inp, out), capability=ability, routing_weight=weight
        ),
        st.integers(0, 50),
        st.integers(1, 50),
        st.integers(1, 50),
        st.floats(0, 1),
        st.sampled_from([0.5, 1.0, 2.0]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each.target_id,
)


@given(fleets, complexities, st.integers(1, 5_000), st.integers(1, 2_000))
def test_every_target_is_a_candidate_or_rejected_and_never_both(
    fleet: list[Target], complexity: float, tokens: int, output: int
) -> None:
    """Nothing disappears without a reason, and the bound covers the expectation."""
    found = route(
        facts(input_tokens=tokens, max_output_tokens=output), complexity, *fleet, policy=Policy(max_candidates=99)
    )
    listed = names(found) + [rejection.target_id for rejection in found.rejected]
    assert sorted(listed) == sorted(each.target_id for each in fleet)
    for candidate in found.candidates:
        assert candidate.expected_nanousd is not None
        assert candidate.bound_nanousd is not None
        assert 0 <= candidate.expected_nanousd <= candidate.bound_nanousd


@given(fleets, complexities)
def test_no_capable_target_is_cheaper_than_the_leader(fleet: list[Target], complexity: float) -> None:
    """`auto` never pays more than it must, routing weights counted in."""
    leader = route(facts(), complexity, *fleet).candidates[0]
    if leader.reason == "most-capable":
        assert all(declared(each) <= declared(leader.target) for each in fleet)
        return
    assert leader.expected_nanousd is not None
    for each in fleet:
        if declared(each) >= complexity:
            alone = route(facts(), complexity, each).candidates[0].expected_nanousd
            assert alone is not None
            assert alone / each.routing_weight >= leader.expected_nanousd / leader.target.routing_weight


@given(fleets, complexities)
def test_planning_is_deterministic_and_ignores_the_order_of_targets(fleet: list[Target], complexity: float) -> None:
    """The same arguments give the same plan, however the catalog was written."""
    assert names(route(facts(), complexity, *fleet)) == names(route(facts(), complexity, *reversed(fleet)))


@given(fleets, complexities, complexities)
def test_a_harder_prompt_never_goes_to_a_weaker_set(fleet: list[Target], one: float, two: float) -> None:
    """Raising the complexity only removes capable targets."""
    easy, difficult = sorted((one, two))

    def capable(complexity: float) -> set[str]:
        found = route(facts(), complexity, *fleet, policy=Policy(max_candidates=99))
        return set() if found.candidates[0].reason == "most-capable" else set(names(found))

    assert capable(difficult) <= capable(easy)


# Measured targets: what counts is the loss against the reference.

REFERENCE = Policy(reference="gpt-4o")


def outlook(
    adequate: float, low: float | None = None, high: float | None = None, tokens: int = 100
) -> TargetPrediction:
    return TargetPrediction(
        adequate=adequate,
        low=adequate if low is None else low,
        high=adequate if high is None else high,
        output_tokens=tokens,
        output_tokens_p90=tokens,
    )


@pytest.mark.parametrize("alias", ["auto", "ours"])
def test_the_last_of_many_own_targets_leaves_its_place_to_one_that_is_bought(alias: str) -> None:
    """Our own share GPUs and may be full together; what comes behind all of them would never be tried."""
    own = [target(f"own-{number}", price=price(0.1, 0.1)) for number in range(6)]
    ids = [each.target_id for each in own]
    policy = Policy(aliases={"ours": (*ids, GPT.target_id)}, pooled=frozenset(ids))
    found = route(facts(alias=alias), 0.1, *own, GPT, policy=policy)
    assert names(found) == ["own-0", "own-1", "own-2", "gpt-4o"]
    assert found.candidates[-1].reason == "fallback"


def measured(
    request: Facts,
    outlooks: Mapping[str, TargetPrediction],
    *targets: Target,
    policy: Policy = REFERENCE,
    down: tuple[str, ...] = (),
    complexity: float = 0.5,
) -> RoutePlan:
    catalog = Catalog(targets={each.target_id: each for each in targets})
    fleet = {each.target_id: () if each.target_id in down else each.deployments for each in targets}
    prediction = Prediction(complexity=complexity, source="onnx", expected_output_tokens=100, outlooks=outlooks)
    return plan(request, prediction, policy, catalog, fleet)


@pytest.mark.parametrize(
    ("willing", "expected"),
    [(1e9, ["gpt-4o"]), (1e7, ["llama-3-70b", "gpt-4o"]), (1e4, ["mini", "llama-3-70b", "gpt-4o"])],
)
def test_a_measured_target_is_capable_while_a_better_one_is_not_worth_its_price(
    willing: float, expected: list[str]
) -> None:
    """The less a good answer may cost, the more of the cheaper targets are let in, one by one."""
    outlooks = {"gpt-4o": outlook(0.9), "llama-3-70b": outlook(0.81), "mini": outlook(0.5)}
    assert names(measured(facts(willing_nanousd=willing), outlooks, GPT, LLAMA, MINI)) == expected


def test_a_target_better_than_the_reference_comes_first_whatever_it_costs_less() -> None:
    """What gains and is cheaper needs no willingness; the reference stands last, should it fail, and what is weaker does not."""
    outlooks = {"gpt-4o": outlook(0.7), "mini": outlook(0.71), "llama-3-70b": outlook(0.69)}
    found = measured(facts(), outlooks, GPT, MINI, LLAMA)
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [
        ("mini", "cheapest-capable"),
        ("gpt-4o", "fallback"),
    ]
    assert obstacles(found) == {"llama-3-70b": "too-hard"}
    assert found.tolerance == pytest.approx(-0.01)


def test_of_equal_chances_the_cheaper_comes_first_and_the_other_stands_behind() -> None:
    """However much a good answer may cost."""
    assert names(measured(facts(), {"gpt-4o": outlook(0.7), "mini": outlook(0.7)}, GPT, MINI)) == ["mini", "gpt-4o"]


def test_outcomes_stand_before_the_declared_capability_and_only_for_measured_targets() -> None:
    """The declared rule goes on for a target that nobody measured."""
    outlooks = {"gpt-4o": outlook(0.9), "mini": outlook(0.89)}
    found = measured(facts(willing_nanousd=1e6), outlooks, GPT, LLAMA, MINI, complexity=0.5)
    assert names(found) == ["mini", "llama-3-70b", "gpt-4o"]
    found = measured(facts(willing_nanousd=1e6), outlooks, GPT, LLAMA, MINI, complexity=0.7)
    assert names(found) == ["mini", "gpt-4o"]


def test_a_minimum_of_1_takes_measured_targets_alone() -> None:
    """A declared one is as good as the baseline model by its operator's word only: that is no part of 100 %."""
    outlooks = {"gpt-4o": outlook(0.9), "mini": outlook(0.866)}
    below = measured(facts(most_lost=0.03), outlooks, GPT, LLAMA, MINI, complexity=0.5)
    assert names(below)[0] == "llama-3-70b"
    whole = measured(facts(most_lost=0.0), outlooks, GPT, LLAMA, MINI, complexity=0.5)
    assert names(whole) == ["gpt-4o"], "nor one that is 3.4 points below"
    (declared_one,) = [each for each in whole.rejected if each.target_id == "llama-3-70b"]
    assert declared_one.obstacle == "unknown"
    assert "it was not measured, and a minimum of 100 % takes measured models alone" in declared_one.detail


def test_a_minimum_of_1_without_a_measured_baseline_loses_nothing_either() -> None:
    """The best known model stands for it, and what is below that by less than 3 points is not good enough."""
    outlooks = {"mini": outlook(0.88)}
    for most, reason in ((0.09, "cheapest-capable"), (0.0, "most-capable")):
        prediction = Prediction(
            complexity=0.5, source="onnx", expected_output_tokens=100, outlooks=outlooks, best_known=0.9
        )
        catalog = Catalog(targets={"mini": MINI})
        found = plan(facts(most_lost=most), prediction, REFERENCE, catalog, {"mini": MINI.deployments})
        assert [(each.target.target_id, each.reason) for each in found.candidates] == [("mini", reason)]


def test_a_rejection_tells_the_probabilities() -> None:
    """Who asks why a target was passed over can check the sum."""
    found = measured(facts(willing_nanousd=1e8), {"gpt-4o": outlook(0.9), "mini": outlook(0.6)}, GPT, MINI)
    (rejection,) = found.rejected
    assert rejection.obstacle == "too-hard"
    told = compared(found)
    assert (
        told.note(told.targets[-1]) == "adequate with 0.600, the baseline model with 0.900: this prompt asks for 0.900"
    )
    assert found.candidates[0].adequate == 0.9
    assert found.reference_adequate == 0.9


def test_expected_cost_takes_each_targets_own_length() -> None:
    """A cheap target that talks three times as much is not the cheaper one."""
    talker, terse = target("talker", price=price(1, 2)), target("terse", price=price(1, 4))
    outlooks = {"talker": outlook(0.9, tokens=900), "terse": outlook(0.9, tokens=300)}
    found = measured(facts(), outlooks, talker, terse, policy=Policy(reference="terse"))
    assert names(found) == ["terse", "talker"]
    assert found.candidates[0].expected_nanousd == 100 * 1_000 + 300 * 4_000


@pytest.mark.parametrize(
    ("changes", "reads", "writes"),
    [
        ({}, 1_000, 4_000),
        ({"media": frozenset({"image"})}, 1_000, 4_000),
        ({"media": frozenset({"audio"})}, 32_000, 4_000),
        ({"decisive": frozenset({"modalities"})}, 1_000, 64_000),
        ({"media": frozenset({"audio"}), "decisive": frozenset({"audio"})}, 32_000, 64_000),
    ],
)
def test_sound_is_expected_at_its_own_price(changes: dict[str, Any], reads: int, writes: int) -> None:
    """A prompt that is heard and an answer that is spoken are not compared with others at the price of text."""
    dear = msgspec.structs.replace(price(1, 4), audio_input_nanousd=32_000 * 10**6, audio_output_nanousd=64_000 * 10**6)
    (only,) = route(facts(**changes), 0.1, target("speaker", price=dear)).candidates
    assert only.expected_nanousd == 100 * reads + only.output_tokens * writes
    assert only.bound_nanousd is not None
    assert only.bound_nanousd >= only.expected_nanousd


def test_where_the_reference_cannot_serve_the_others_are_weighed_alike() -> None:
    """It stays what they are compared with, and the same willingness chooses among those that are left."""
    outlooks = {"gpt-4o": outlook(0.9), "llama-3-70b": outlook(0.6), "mini": outlook(0.5)}
    found = measured(facts(willing_nanousd=1e6), outlooks, GPT, LLAMA, MINI, down=("gpt-4o",))
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [("llama-3-70b", "cheapest-capable")]
    assert found.tolerance == pytest.approx(0.3)
    assert obstacles(found) == {"gpt-4o": "unavailable", "mini": "too-hard"}


def test_of_equally_weak_targets_the_cheapest_leads() -> None:
    """Nothing is gained by paying more for the same chance."""
    outlooks = {"gpt-4o": outlook(0.9), "llama-3-70b": outlook(0.5), "mini": outlook(0.5)}
    found = measured(facts(), outlooks, GPT, LLAMA, MINI, down=("gpt-4o",))
    assert names(found) == ["mini", "llama-3-70b"]


@pytest.mark.parametrize(
    ("known", "policy", "expected"),
    [
        ({"gpt-4o", "mini"}, Policy(reference="gpt-4o"), ("gpt-4o",)),
        ({"gpt-4o", "mini"}, Policy(reference="gpt-4o", auto_targets=("mini", "llama-3-70b")), ("gpt-4o",)),
        ({"gpt-4o", "mini"}, Policy(), ("gpt-4o", "mini")),
        # The reference was not measured, and neither was anything that is declared as capable.
        ({"mini"}, Policy(reference="gpt-4o"), ()),
        ({"mini", "llama-3-70b"}, Policy(), ()),
        # Of those that `auto` may choose the most capable was.
        ({"mini", "llama-3-70b"}, Policy(auto_targets=("mini", "llama-3-70b")), ("mini", "llama-3-70b")),
        (set(), Policy(reference="gpt-4o"), ()),
    ],
)
def test_the_yardstick(known: set[str], policy: Policy, expected: tuple[str, ...]) -> None:
    """The reference, or the best of the measured ones unless something more capable is unknown."""
    catalog = Catalog(targets={each.target_id: each for each in (GPT, LLAMA, MINI)})
    assert set(reference_targets(known, policy, catalog, None)) == set(expected)


def test_a_small_model_is_never_its_own_yardstick() -> None:
    """Measured alone, it would lose nothing against itself; then its declared capability counts."""
    found = measured(facts(), {"mini": outlook(0.2)}, GPT, MINI, policy=Policy(), complexity=0.9)
    assert names(found) == ["gpt-4o"]
    assert found.reference_adequate is None


def test_without_a_measured_reference_the_best_stands_for_it() -> None:
    """The best chance among the targets is what the others are held against."""
    outlooks = {"gpt-4o": outlook(0.6), "mini": outlook(0.8)}
    found = measured(facts(), outlooks, GPT, MINI, policy=Policy())
    assert names(found) == ["mini"]
    assert found.reference_adequate == 0.8


chances = st.floats(0, 1)
priced_outlooks = st.lists(st.tuples(chances, chances, chances), min_size=6, max_size=6)


def _outlooks(fleet: list[Target], drawn: list[tuple[float, float, float]]) -> dict[str, TargetPrediction]:
    sorted_chances = [sorted(each) for each in drawn]
    return {
        each.target_id: outlook(middle, low, high)
        for each, (low, middle, high) in zip(fleet, sorted_chances, strict=False)
    }


@given(fleets, priced_outlooks, chances, chances)
def test_less_willingness_never_picks_a_dearer_first_candidate(
    fleet: list[Target], drawn: list[tuple[float, float, float]], one: float, two: float
) -> None:
    """Giving up more quality never costs more, routing weights counted in."""
    outlooks, policy = _outlooks(fleet, drawn), Policy(reference=fleet[0].target_id)

    def rank(willing: float) -> float:
        first = measured(facts(willing_nanousd=1e8 * willing), outlooks, *fleet, policy=policy).candidates[0]
        assert first.expected_nanousd is not None
        return first.expected_nanousd / first.target.routing_weight

    assert rank(min(one, two)) <= rank(max(one, two))


@given(fleets, priced_outlooks, chances)
def test_a_measured_plan_ignores_the_order_of_targets(
    fleet: list[Target], drawn: list[tuple[float, float, float]], willing: float
) -> None:
    """The same targets and outlooks give the same plan, however they were written down."""
    outlooks, policy = _outlooks(fleet, drawn), Policy(reference=fleet[0].target_id)
    asked = facts(willing_nanousd=1e8 * willing)
    one = measured(asked, outlooks, *fleet, policy=policy)
    backwards = dict(reversed(outlooks.items()))
    other = measured(asked, backwards, *reversed(fleet), policy=policy)
    assert one.candidates == other.candidates


@given(fleets, priced_outlooks, chances)
def test_the_first_has_the_greatest_net_benefit_and_the_others_are_no_worse_than_it_or_than_the_reference(
    fleet: list[Target], drawn: list[tuple[float, float, float]], willing: float
) -> None:
    """What is asked next after a failure is as likely to be adequate as the first or the reference; what is rejected is less likely."""
    outlooks, policy = _outlooks(fleet, drawn), Policy(reference=fleet[0].target_id, max_candidates=99)
    found = measured(facts(willing_nanousd=1e8 * willing), outlooks, *fleet, policy=policy)
    least = min(outlooks[names(found)[0]].adequate, outlooks[fleet[0].target_id].adequate)
    assert all(outlooks[name].adequate >= least for name in names(found))
    assert all(each.adequate is not None and each.adequate < least for each in found.rejected)
    costs = {each.target.target_id: each.expected_nanousd for each in found.candidates}
    costs |= {each.target_id: each.expected_nanousd for each in found.rejected}
    benefit = {
        each.target_id: 1e8 * willing * outlooks[each.target_id].adequate
        - (costs[each.target_id] or 0) / each.routing_weight
        for each in fleet
    }
    assert benefit[names(found)[0]] >= max(benefit.values()) - 1e-3


EMBEDS: frozenset[Capability] = frozenset({"embeddings"})
BGE = target("bge", price=price(0.01, 0), capabilities=EMBEDS, max_context_tokens=512)


def texts(in_all: int, longest: int, alias: str = "bge") -> Facts:
    return facts(alias=alias, needs=EMBEDS, input_tokens=in_all, longest_tokens=longest, most_input_tokens=4 * in_all)


@pytest.mark.parametrize("alias", ["auto", "bge", "both"])
def test_what_embeds_never_answers(alias: str) -> None:
    """However cheap it is, and whatever names it: by `auto`, by its own name, by an alias."""
    policy = Policy(aliases={"both": ("bge", "gpt-4o")})
    if alias == "bge":
        with pytest.raises(NoEligibleTarget, match="makes embeddings"):
            route(facts(alias=alias), 0.0, BGE, GPT, policy=policy)
        return
    found = route(facts(alias=alias), 0.0, BGE, GPT, policy=policy)
    assert names(found) == ["gpt-4o"]
    assert obstacles(found) == ({} if alias == "auto" else {"bge": "capability-missing"})


@pytest.mark.parametrize("alias", ["gpt-4o", "both"])
def test_what_answers_never_embeds(alias: str) -> None:
    """Not even as a fallback."""
    policy = Policy(aliases={"both": ("gpt-4o", "bge")}, fallbacks={"bge": ("gpt-4o",)})
    if alias == "gpt-4o":
        with pytest.raises(NoEligibleTarget, match="cannot do embeddings"):
            route(texts(5, 5, alias), 0.0, BGE, GPT, policy=policy)
        return
    assert names(route(texts(5, 5, alias), 0.0, BGE, GPT, policy=policy)) == ["bge"]
    assert names(route(texts(5, 5), 0.0, BGE, GPT, policy=policy)) == ["bge"]
    with pytest.raises(TargetsUnavailable):
        route(texts(5, 5), 0.0, BGE, GPT, policy=policy, down=("bge",))


def test_the_context_bounds_the_longest_text_alone() -> None:
    """A thousand short texts pass, one that is too long does not, and it is told by its own length."""
    assert names(route(texts(400_000, 400), 0.0, BGE)) == ["bge"]
    with pytest.raises(ContextTooLong, match=r"longest text fits no target .*about 900 tokens") as refusal:
        route(texts(900, 900), 0.0, BGE)
    assert refusal.value.param == "input"


def test_embeddings_cost_what_goes_in() -> None:
    """No answer is expected or held, and the bound has all texts together, not one context's worth."""
    dear = target("dear", price=price(1, 1_000), capabilities=EMBEDS, max_context_tokens=512)
    request = texts(10_000, 100, "dear")
    (candidate,) = route(request, 0.0, dear).candidates
    assert (candidate.output_tokens, candidate.expected_nanousd, candidate.bound_nanousd) == (0, 10_000_000, 10_000_000)
    assert most_nanousd(dear, request) == 40_000_000


def test_what_embeds_is_no_yardstick() -> None:
    """A declared capability says nothing of embedding, so it hides no measured target's outcomes."""
    catalog = Catalog(targets={each.target_id: each for each in (LLAMA, BGE)})
    assert declared(BGE) > declared(LLAMA)
    assert choosable(Policy(), catalog, None) == [LLAMA]
    assert reference_targets({"llama-3-70b"}, Policy(), catalog, None) == ("llama-3-70b",)


OWN = target("own", price=price(2, 2), capability=0.6)
POOLED = Policy(pooled=frozenset({"own"}))


def with_wait(wait_s: float, place: float = 0.0, **changes: Any) -> Rooms:
    return Rooms({"own": Room(wait_s, 1.0)}, place, **changes)


def test_our_own_with_room_come_first_whatever_their_average_price() -> None:
    """Their hours are paid for; what is booked stays the average price."""
    found = route(facts(), 0.2, GPT, OWN, MINI, policy=POOLED, rooms=with_wait(0))
    first, second = found.candidates[:2]
    assert (first.target.target_id, first.reason, first.margin_why) == ("own", "cheapest-capable", "own-room")
    assert (second.target.target_id, second.margin_why) == ("mini", "bought")
    assert first.expected_nanousd == 200 * 2_000
    assert first.margin_nanousd == 200 * 20
    assert second.margin_nanousd == second.expected_nanousd
    unknown = route(facts(), 0.2, GPT, OWN, MINI, policy=POOLED)
    assert names(unknown) == ["mini", "own", "gpt-4o"]
    assert [each.margin_why for each in unknown.candidates] == ["bought", "average", "bought"]


def test_what_is_booked_and_compared_with_does_not_hang_on_the_room() -> None:
    """Expected cost, bound and the cheapest commercial target are the same in an idle and in a full pool."""
    plans = [route(facts(), 0.2, GPT, OWN, MINI, policy=POOLED, rooms=with_wait(wait_s)) for wait_s in (0, 0.5, 5)]
    money = [
        {each.target.target_id: (each.expected_nanousd, each.bound_nanousd) for each in found.candidates}
        for found in plans
    ]
    assert money[0] == money[1] == money[2]
    assert {found.cheapest_commercial and found.cheapest_commercial.target_id for found in plans} == {"mini"}


def test_without_room_they_come_right_after_the_cheapest_alternative() -> None:
    """As an overflow at dispatch does, it says why; a dearer target stays behind them."""
    found = route(facts(), 0.2, GPT, OWN, MINI, policy=POOLED, rooms=with_wait(1.0))
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [
        ("mini", "spill-over"),
        ("own", "fallback"),
        ("gpt-4o", "fallback"),
    ]
    assert found.candidates[1].margin_nanousd == found.candidates[0].expected_nanousd


def test_who_stays_on_our_own_pays_their_average_at_most() -> None:
    """A team that does not overflow is planned by price alone: full, they cost their average, and nothing overflows."""
    dear = route(facts(), 0.5, GPT, OWN, policy=POOLED, rooms=with_wait(5, may_overflow=False))
    assert (names(dear), dear.candidates[0].reason) == (["own", "gpt-4o"], "cheapest-capable")
    cheap = route(facts(), 0.2, MINI, OWN, policy=POOLED, rooms=with_wait(5, may_overflow=False))
    assert (names(cheap), cheap.candidates[0].reason) == (["mini", "own"], "cheapest-capable")


def test_two_processes_on_one_snapshot_agree_and_do_not_turn_together() -> None:
    """Of one request both decide the same; of many, a part overflows that grows with the wait."""
    ids = [f"req_{number:032x}" for number in range(400)]

    def overflowing(wait_s: float) -> list[bool]:
        plans = (route(facts(), 0.2, OWN, MINI, policy=POOLED, rooms=with_wait(wait_s, place_of(each))) for each in ids)
        return [names(found)[0] == "mini" for found in plans]

    assert overflowing(0.7) == overflowing(0.7)
    shares = [sum(overflowing(wait_s)) / len(ids) for wait_s in (0.3, 0.6, 0.75, 0.9, 1.0)]
    assert shares == pytest.approx([0, 0.2, 0.5, 0.8, 1], abs=0.08)


def test_with_room_an_answer_may_cost_what_keeps_the_floor_with_room() -> None:
    """Which willingness holds follows from whether one of our own that could serve the prompt has room for it."""
    adequate = {"gpt-4o": 0.9, "mini": 0.8, "own": 0.7}
    prediction = Prediction(
        complexity=0.2,
        source="onnx",
        expected_output_tokens=100,
        outlooks={
            name: TargetPrediction(adequate=chance, low=0.0, high=1.0, output_tokens=100, output_tokens_p90=200)
            for name, chance in adequate.items()
        },
    )
    policy = msgspec.structs.replace(POOLED, reference="gpt-4o")
    asked = facts(willing_nanousd=1e6, willing_with_room_nanousd=1e8)
    everything = Catalog(targets={each.target_id: each for each in (GPT, OWN, MINI)})
    fleet = {each.target_id: each.deployments for each in (GPT, OWN, MINI)}
    found = {
        wait_s: plan(asked, prediction, policy, everything, fleet, rooms=with_wait(wait_s)) for wait_s in (0.0, 2.0)
    }
    assert (found[0.0].tolerance, names(found[0.0])) == (0.0, ["gpt-4o"])
    assert names(found[2.0]) == ["mini", "gpt-4o"]
    assert found[2.0].tolerance == pytest.approx(0.1)
    vision = msgspec.structs.replace(OWN, capabilities=frozenset())
    blind = Catalog(targets={each.target_id: each for each in (GPT, vision, MINI)})
    needs = msgspec.structs.replace(asked, needs=frozenset({"vision"}))
    assert plan(needs, prediction, policy, blind, fleet, rooms=with_wait(0.0)).tolerance == pytest.approx(0.1)


LOOP = ToolLoop(steps=3)
_HOUSE = (GPT, LLAMA, MINI)


def struggling(raises: int, steps: int = 3) -> ToolLoop:
    return ToolLoop(steps, raises, "repeated-errors")


def first(found: RoutePlan) -> tuple[str, str]:
    return found.candidates[0].target.target_id, found.candidates[0].reason


def test_a_tool_loop_stays_where_its_turn_began() -> None:
    """What would be cheaper now is tried after it; a turn's first request is planned as ever."""
    turn = TurnChoice({0: "llama-3-70b"})
    found = route(facts(loop=LOOP), 0.2, *_HOUSE, turn=turn)
    assert first(found) == ("llama-3-70b", "same-turn")
    assert [(each.target.target_id, each.reason) for each in found.candidates[1:]] == [
        ("mini", "fallback"),
        ("gpt-4o", "fallback"),
    ]
    assert first(route(facts(), 0.2, *_HOUSE, turn=turn)) == ("mini", "cheapest-capable")
    assert first(route(facts(loop=LOOP), 0.2, *_HOUSE, turn=TurnChoice({0: "mini"}))) == ("mini", "cheapest-capable")


@pytest.mark.parametrize(
    ("request_", "complexity", "down"),
    [
        (facts(loop=LOOP), 0.2, ("llama-3-70b",)),
        (facts(loop=LOOP), 0.9, ()),
        (facts(loop=LOOP, allowed_models=frozenset({"mini", "gpt-4o"})), 0.2, ()),
        (facts(loop=LOOP, input_tokens=20_000, opening_tokens=100), 0.2, ()),
    ],
)
def test_it_moves_when_its_target_cannot_serve_it_any_more(
    request_: Facts, complexity: float, down: tuple[str, ...]
) -> None:
    """Unavailable, not capable, not allowed, or too small for what the loop has become."""
    mini = msgspec.structs.replace(MINI, max_context_tokens=128_000)
    found = route(request_, complexity, GPT, LLAMA, mini, turn=TurnChoice({0: "llama-3-70b"}), down=down)
    assert first(found)[0] != "llama-3-70b"
    assert first(found)[1] == "cheapest-capable"


def test_within_a_loop_prices_are_compared_as_at_its_beginning() -> None:
    """A process that does not know the turn plans what its first request was given, however long the loop has grown."""
    reads, writes = target("reads", price=price(0.1, 5)), target("writes", price=price(1, 1))
    opened = route(facts(input_tokens=100), 0.2, reads, writes)
    assert names(opened) == ["writes", "reads"]
    assert names(route(facts(input_tokens=4_000), 0.2, reads, writes)) == ["reads", "writes"]
    grown = route(facts(input_tokens=4_000, opening_tokens=100, loop=LOOP), 0.2, reads, writes)
    assert names(grown) == ["writes", "reads"]
    # What it is expected to cost, and to hold of a budget, is of what it is now.
    assert grown.candidates[0].expected_nanousd == 4_100 * 1_000
    assert grown.candidates[0].margin_nanousd == 200 * 1_000


def test_a_struggling_loop_goes_to_the_next_better_target() -> None:
    """One step for each raise, and before what the turn had; at the best one it stays."""
    for raises, expected in ((0, "mini"), (1, "llama-3-70b"), (2, "gpt-4o"), (3, "gpt-4o")):
        found = route(facts(loop=struggling(raises)), 0.2, *_HOUSE)
        assert first(found) == (expected, "struggle" if raises else "cheapest-capable")
    found = route(facts(loop=struggling(1)), 0.2, *_HOUSE, turn=TurnChoice({0: "llama-3-70b"}))
    assert [(each.target.target_id, each.reason) for each in found.candidates] == [
        ("gpt-4o", "struggle"),
        ("llama-3-70b", "fallback"),
        ("mini", "fallback"),
    ]


def test_a_raised_loop_stays_where_it_was_raised_to() -> None:
    """One episode is one step, also for the requests that follow; another conversation that began alike is not lifted."""
    turn = TurnChoice({0: "mini", 1: "llama-3-70b"})
    assert first(route(facts(loop=struggling(1)), 0.2, *_HOUSE, turn=turn)) == ("llama-3-70b", "struggle")
    assert first(route(facts(loop=struggling(2)), 0.2, *_HOUSE, turn=turn)) == ("gpt-4o", "struggle")
    assert first(route(facts(loop=LOOP), 0.2, *_HOUSE, turn=turn)) == ("mini", "cheapest-capable")


def test_the_turn_after_a_struggle_is_raised_from_its_own_choice() -> None:
    """It has no step yet and no choice to keep."""
    found = route(facts(loop=struggling(1, steps=0)), 0.2, *_HOUSE, turn=TurnChoice({0: "gpt-4o"}))
    assert first(found) == ("llama-3-70b", "struggle")


def test_a_raise_is_no_reason_to_leave_the_allowed_or_the_named() -> None:
    """The team's targets, and the caller's own choice, stand above it."""
    allowed = frozenset({"mini", "llama-3-70b"})
    assert first(route(facts(loop=struggling(2), allowed_models=allowed), 0.2, *_HOUSE))[0] == "llama-3-70b"
    assert first(route(facts(alias="mini", loop=struggling(2)), 0.2, *_HOUSE)) == ("mini", "named")


def test_by_measured_outcomes_better_is_what_is_more_often_adequate() -> None:
    """Not what is declared more capable."""
    found = measured_plan({"gpt-4o": 0.95, "mini": 0.93, "llama-3-70b": 0.94}, loop=struggling(1), willing_nanousd=1e5)
    assert first(found) == ("llama-3-70b", "struggle")


def test_a_turn_that_began_with_room_stays_without_it() -> None:
    """Its willingness was the one with room; a pool that is full for this request is left, and its overflow told."""
    wide: dict[str, Any] = {"willing_nanousd": 1e6, "willing_with_room_nanousd": 1e4, "loop": LOOP}
    shares = {"gpt-4o": 0.95, "mini": 0.89, "llama-3-70b": 0.949}
    assert first(measured_plan(shares, turn=TurnChoice({0: "mini"}), **wide))[0] == "mini"
    assert first(measured_plan(shares, **wide))[0] == "llama-3-70b"
    full = Rooms({"own": Room(9.0, 1.0)}, 0.0)
    found = route(facts(loop=LOOP), 0.2, OWN, MINI, rooms=full, turn=TurnChoice({0: "own"}))
    assert first(found) == ("mini", "spill-over")


def measured_plan(shares: Mapping[str, float], turn: TurnChoice | None = None, **request: Any) -> RoutePlan:
    outlooks = {
        name: TargetPrediction(adequate=share, low=share, high=share, output_tokens=100, output_tokens_p90=200)
        for name, share in shares.items()
    }
    prediction = msgspec.structs.replace(hard(0.2), outlooks=outlooks)
    catalog = Catalog(targets={each.target_id: each for each in _HOUSE})
    fleet = {each.target_id: each.deployments for each in _HOUSE}
    return plan(facts(**request), prediction, Policy(reference="gpt-4o"), catalog, fleet, turn=turn)


@given(
    st.integers(0, 4),
    st.integers(0, 5),
    st.dictionaries(st.integers(0, 4), st.sampled_from(["mini", "llama-3-70b", "gpt-4o", "gone"])),
    st.floats(0, 1),
    st.sets(st.sampled_from(["mini", "llama-3-70b", "gpt-4o"]), max_size=2),
)
def test_a_raise_never_leads_below_what_the_turn_had(
    raises: int, steps: int, targets: dict[int, str], complexity: float, down: set[str]
) -> None:
    """Whatever is remembered or down: every target once, the same plan twice, and none weaker than without the raise."""
    turn = TurnChoice(targets)

    def planned(loop: ToolLoop) -> RoutePlan:
        return route(facts(loop=loop), complexity, *_HOUSE, turn=turn, down=tuple(down))

    raised = planned(struggling(raises, steps))
    assert raised == planned(struggling(raises, steps))
    assert len(set(names(raised))) == len(names(raised))
    held = turn.at(raises)
    present = (
        planned(ToolLoop(steps))
        if held is None
        else route(facts(loop=LOOP), complexity, *_HOUSE, turn=TurnChoice({0: held.target_id}), down=tuple(down))
    )
    if held is None or steps:
        assert declared(raised.candidates[0].target) >= declared(present.candidates[0].target)
    assert set(names(raised)) == set(names(present))


def test_a_raise_counts_from_what_would_be_chosen_without_a_cache() -> None:
    """What the turn before was raised to is first for its cache, and no step is added to it."""
    cached = Sticky("llama-3-70b", 2_000)
    small = target("small", price=price(0.15, 0.15, 0.15), capability=0.3)
    llama = msgspec.structs.replace(LLAMA, price=price(0.4, 0.4, 0.04))
    next_turn = facts(input_tokens=2_000, loop=struggling(1, steps=0))
    assert first(route(next_turn, 0.2, GPT, llama, small, sticky=cached)) == ("llama-3-70b", "prompt-cache")
    assert first(route(next_turn, 0.2, GPT, llama, small)) == ("llama-3-70b", "struggle")
    # Once the turn has begun there, the raise is the reason.
    begun = facts(input_tokens=2_000, loop=struggling(1))
    found = route(begun, 0.2, GPT, llama, small, sticky=cached, turn=TurnChoice({1: "llama-3-70b"}))
    assert first(found) == ("llama-3-70b", "struggle")


@given(st.sampled_from(["small", "middle", "large"]), st.integers(0, 5), st.integers(0, 3), st.integers(1, 8_000))
def test_without_a_raise_or_a_choice_a_loop_is_planned_like_any_request(
    cached: str, steps: int, raises: int, tokens: int
) -> None:
    """Whatever is cached where; and with a raise its first is never weaker than without one."""
    targets = [
        target(name, price=price(usd, usd, usd / 10), capability=capability)
        for name, usd, capability in (("small", 1, 0.3), ("middle", 2, 0.6), ("large", 4, 1.0))
    ]
    request = facts(input_tokens=tokens)
    sticky = Sticky(cached, tokens)
    plain = route(request, 0.2, *targets, sticky=sticky)
    looped = msgspec.structs.replace(request, loop=ToolLoop(steps))
    assert route(looped, 0.2, *targets, sticky=sticky) == plain
    raised = route(msgspec.structs.replace(request, loop=struggling(raises, steps)), 0.2, *targets, sticky=sticky)
    assert declared(raised.candidates[0].target) >= declared(plain.candidates[0].target)
    moved = raised.candidates[0].target != plain.candidates[0].target
    assert (raised.candidates[0].reason == "struggle") == moved


def scored(vetoes: Mapping[str, str] = {}, margins: Mapping[str, int] = {}) -> Facts:
    return facts(scores=Scores(vetoes, margins))


def test_a_vetoed_target_is_asked_by_no_way() -> None:
    """Neither first, nor as a fallback, nor as the baseline of the experiment, and not by its name."""
    request = scored({"mini": "not there", "gpt-4o": "nor there"})
    found = route(request, 0.2, GPT, LLAMA, MINI)
    assert names(found) == ["llama-3-70b"]
    assert obstacles(found) == {"mini": "vetoed", "gpt-4o": "vetoed"}
    catalog = Catalog(targets={each.target_id: each for each in (GPT, LLAMA, MINI)})
    fleet = {each.target_id: each.deployments for each in (GPT, LLAMA, MINI)}
    assert held_out(found, request, hard(0.2), Policy(reference="gpt-4o"), catalog, fleet) is None
    with pytest.raises(NoEligibleTarget, match="mini: not there"):
        route(msgspec.structs.replace(request, alias="mini"), 0.2, MINI)


def test_a_vetoed_target_is_not_let_in_for_want_of_longer_answers() -> None:
    """Where all write shorter answers than were wanted they are asked all the same, but for that one; the scorer is asked of them."""
    request = facts(max_output_tokens=5_000, scores=Scores({"mini": "not there"}, {}))
    assert names(route(request, 0.2, LLAMA, MINI)) == ["llama-3-70b"]
    catalog = Catalog(targets={each.target_id: each for each in (LLAMA, MINI)})
    fleet = {each.target_id: each.deployments for each in (LLAMA, MINI)}
    asked = facts(max_output_tokens=5_000)
    assert len(eligible_targets(asked, hard(0.2), Policy(), catalog, fleet)) == 2


def test_a_margin_moves_a_target_in_the_order_alone() -> None:
    """What it is expected to cost, and so what is booked and held, stays; below nothing nothing costs."""
    plain = route(facts(), 0.2, GPT, LLAMA, MINI)
    moved = route(scored(margins={"mini": 10**9, "gpt-4o": -(10**12)}), 0.2, GPT, LLAMA, MINI)
    assert names(plain) == ["mini", "llama-3-70b", "gpt-4o"]
    assert names(moved) == ["gpt-4o", "llama-3-70b", "mini"]
    costs = {each.target.target_id: (each.expected_nanousd, each.bound_nanousd) for each in plain.candidates}
    assert {each.target.target_id: (each.expected_nanousd, each.bound_nanousd) for each in moved.candidates} == costs
    assert moved.candidates[0].margin_nanousd == 0


@pytest.mark.parametrize(
    ("changed", "obstacle"),
    [
        ({"allowed_models": frozenset({"gpt-4o"})}, "not-allowed"),
        ({"tier": "batch"}, "tier"),
        ({"needs": frozenset({"vision"})}, "capability-missing"),
        ({"input_tokens": 1_000_000}, "context"),
    ],
)
def test_no_margin_lets_in_what_nothing_else_allows(changed: dict[str, Any], obstacle: str) -> None:
    """Whatever a scorer says, the set of candidates never grows; nor does it see those that it might tempt with."""
    small = target(
        "small",
        price=price(0.1, 0.1),
        max_context_tokens=1_000,
        tiers=frozenset({"interactive"}),
        capabilities=frozenset(),
    )
    large = target("gpt-4o", price=price(2.5, 10), max_context_tokens=2_000_000, capabilities=frozenset({"vision"}))
    request = facts(**changed, scores=Scores({}, {"small": -(10**12)}))
    found = route(request, 0.2, small, large)
    assert names(found) == ["gpt-4o"]
    assert obstacles(found) == {"small": obstacle}
    catalog = Catalog(targets={each.target_id: each for each in (small, large)})
    fleet = {each.target_id: each.deployments for each in (small, large)}
    assert [each.target_id for each in eligible_targets(request, hard(0.2), Policy(), catalog, fleet)] == ["gpt-4o"]
