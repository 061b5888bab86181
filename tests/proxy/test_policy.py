"""Planning is pure: who may serve, in which order, and why."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.prediction import Prediction
from cost.prices import Price
from providers.catalog import Catalog
from providers.target import Capability, Deployment, Target
from proxy.affinity import Sticky
from proxy.errors import ContextTooLong, ModelNotFound, NoEligibleTarget, TargetsUnavailable
from proxy.policy import Facts, Policy, RoutePlan, plan

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
) -> RoutePlan:
    catalog = Catalog(targets={each.target_id: each for each in targets})
    fleet = {each.target_id: () if each.target_id in down else each.deployments for each in targets}
    return plan(request, hard(complexity), policy or Policy(), catalog, fleet, sticky)


def names(found: RoutePlan) -> list[str]:
    return [candidate.target.target_id for candidate in found.candidates]


def obstacles(found: RoutePlan) -> Mapping[str, str]:
    return {rejection.target_id: rejection.obstacle for rejection in found.rejected}


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
def test_an_unknown_and_a_forbidden_model_look_the_same(alias: str) -> None:
    """A team cannot learn which models exist that it may not use."""
    with pytest.raises(ModelNotFound):
        route(facts(alias=alias, allowed_models=frozenset({"mini"})), 0.0, MINI, GPT)


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
        assert all(each.capability <= leader.target.capability for each in fleet)
        return
    assert leader.expected_nanousd is not None
    for each in fleet:
        if each.capability >= complexity:
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
