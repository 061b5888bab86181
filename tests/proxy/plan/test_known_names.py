"""Names of budgets and limits against the configuration: what is mistyped is told, with what was probably meant."""

import pytest

from cost.budgets.budget import Budget
from cost.scopes import Scope
from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.policy import names_of
from proxy.admit.limits.rules import ANY_ID, Place
from proxy.plan.known_names import KnownNames


@pytest.fixture(scope="module")
def names() -> KnownNames:
    """A target of its own name, a wildcard of another provider, an alias of targets and one that chooses."""
    models = [
        {"provider": "openai", "model": "gpt-5-mini"},
        {"model_id": "openrouter/*", "provider": "openrouter", "model": "*"},
    ]
    aliases = {"fast": ["gpt-5-mini"], "cheapest": "auto"}
    return names_of(GatewayConfig.model_validate({"providers": {"models": models}, "policy": {"aliases": aliases}}))


def budget(scope: Scope, scope_id: str) -> Budget:
    return Budget(
        budget_id="b",
        organisation_id="acme",
        scope=scope,
        scope_id=scope_id,
        period="day",
        kind="hard",
        limit_nanousd=1,
    )


@pytest.mark.parametrize(
    ("scope", "scope_id", "said"),
    [
        ("model", "acme/gpt-5-mini", ""),
        ("team_model", "payments/openrouter/meta-llama/llama-3", ""),
        ("provider", "acme/openai", ""),
        ("team_provider", "payments/openrouter", ""),
        ("end_user", "payments/nobody", ""),
        ("model", "acme/gpt-5-mni", "no model `gpt-5-mni`; did you mean `gpt-5-mini`"),
        ("model", "acme/GPT-5-mini", "did you mean `gpt-5-mini`"),
        ("model", "acme/zzzz", "there are `"),
        ("provider", "acme/opneai", "no provider `opneai`; did you mean `openai`"),
        ("team_provider", "payments/gpt-5-mini", "no provider `gpt-5-mini`"),
        ("model", "acme/gpt-5-*", "stands for many models"),
        ("model", "acme/openrouter/*", "stands for many models"),
        (
            "team_model",
            "payments/fast",
            "`fast` is an alias, and what it spends is booked by the model that answered: give `gpt-5-mini`",
        ),
        ("team_model", "payments/cheapest", "chooses among models"),
        ("team_model", "payments/auto", "chooses among models"),
    ],
)
def test_a_budget_is_of_what_the_books_will_have(names: KnownNames, scope: Scope, scope_id: str, said: str) -> None:
    """Targets, what a wildcard stands for, and their providers; of a name that spends under others' names it says which."""
    found = names.budget_problem(budget(scope, scope_id))
    assert (said in found) if said else found == ""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        *((name, "") for name in ("", "auto", "fast", "cheapest", "gpt-5-mini", "openrouter/anything")),
        ("fats", "did you mean `fast`"),
        ("openrouter/*", "stands for many models"),
    ],
)
def test_a_limit_is_of_what_callers_name(names: KnownNames, model: str, said: str) -> None:
    """Aliases too, as callers send them."""
    found = names.limit_problem(Place("model", ANY_ID, model))
    assert (said in found) if said else found == ""


def test_a_gateway_without_models_says_so() -> None:
    """It has no name to propose."""
    assert "it has none" in KnownNames.empty().budget_problem(budget("model", "acme/m"))
