"""Rules as people write them, and bring along from other gateways (51)."""

import json
from typing import Any

import pytest

from guard.guard_config import GuardRule
from guard.inspector import BadRules, checked_rules, read_rules, stored

MAILS: dict[str, Any] = {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({}, "is missing"),
        ({"name": "x", "kind": "pii", "input": "mask"}, "needs `entities`"),
        ({"name": "x", "kind": "words", "input": "mask"}, "needs `words`"),
        ({"name": "x", "kind": "pattern", "input": "mask"}, "needs `pattern`"),
        ({"name": "x", "kind": "pii", "entities": ["email"]}, "it does nothing"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "off", "output": "off"}, "it does nothing"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "mask", "words": ["a"]}, "`words` does nothing"),
        ({"name": "x", "kind": "pii", "entities": ["emial"], "input": "mask"}, "did you mean `email`"),
        ({"name": "x", "kind": "pii", "entities": ["EMAIL_ADDRESS"], "input": "mask"}, "here it is `email`"),
        ({"name": "x", "kind": "pii", "entities": ["CREDIT_CARD"], "input": "mask"}, "here it is `card`"),
        ({"name": "x", "kind": "pii", "entities": ["PERSON"], "input": "mask"}, "cannot be told by patterns"),
        ({"name": "x", "kind": "secret", "entities": ["email"], "input": "mask"}, "is no kind of `secret`"),
        ({"name": "x", "kind": "presidio", "input": "mask"}, "here it is `pii`"),
        ({"name": "x", "kind": "moderation", "input": "flag"}, "must be"),
        ({"name": "x", "kind": "injection", "input": "mask"}, "nothing to mask"),
        ({"name": "x", "kind": "injection", "output": "flag"}, "requests alone"),
        ({"name": "x", "kind": "injection", "input": "flag", "false_rate": 0.05}, "must be 0.01, 0.003, 0.001"),
        ({"name": "x", "kind": "injection", "input": "block", "false_rate": 0.01}, "to block"),
        ({"name": "x", "kind": "injection", "input": "flag", "threshold": 0.5}, "`false_rate`"),
        ({"name": "x", "kind": "injection", "input": "flag", "url": "http://a"}, "`url` does nothing"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "mask", "false_rate": 0.01}, "does nothing"),
        ({"name": "x", "kind": "http", "input": "flag"}, "needs `url`"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "http://a", "target": "m"}, "in its place"),
        ({"name": "x", "kind": "http", "input": "flag", "target": "m", "shape": "openai"}, "leave `key`"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "moderation.example/v1"}, "whole address"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "file:///etc/passwd"}, "whole address"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "http://[::1"}, "whole address"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "http://a/ b"}, "whole address"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "http://me:pw@a/"}, "no password"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "http://a", "key": "sk-123"}, "never written"),
        ({"name": "x", "kind": "http", "input": "mask", "url": "http://a"}, "only a service of shape `litellm`"),
        ({"name": "x", "kind": "http", "output": "mask", "url": "http://a"}, "lets it pass or ends it"),
        (
            {"name": "x", "kind": "http", "input": "flag", "url": "http://a", "shape": "llama_guard"},
            "needs the `model`",
        ),
        (
            {"name": "x", "kind": "http", "input": "flag", "url": "http://a", "shape": "litellm", "scores": {"a": 1}},
            "no scores",
        ),
        ({"name": "x", "kind": "http", "input": "flag", "url": "http://a", "scores": {"a": 2}}, "1"),
        ({"name": "x", "kind": "http", "input": "flag", "url": "http://a", "timeout_ms": 0}, "10"),
        (
            {"name": "x", "kind": "http", "input": "flag", "url": "http://a", "unreachable_fallback": "x"},
            "`on_error: open`",
        ),
        ({"name": "x", "kind": "plugin", "input": "flag"}, "needs `use`"),
        ({"name": "x", "kind": "plugin", "use": "house", "output": "mask"}, "lets it pass or ends it"),
        ({"name": "x", "kind": "plugin", "use": "house", "input": "flag", "window_chars": 900}, "for answers"),
        ({"name": "x", "kind": "plugin", "use": "house", "input": "flag", "url": "http://a"}, "`url` does nothing"),
        ({"name": "x", "kind": "http", "output": "flag", "url": "http://a", "window_chars": 10}, "500"),
        ({"name": "x", "kind": "words", "words": ["a"], "output": "flag", "window_chars": 900}, "does nothing"),
        ({"name": "email", "kind": "plugin", "use": "house", "input": "flag"}, "is the name of a kind"),
        ({"name": "x", "kind": "http", "url": "http://a", "use": "house", "input": "flag"}, "`use` does nothing"),
        ({"name": "x", "kind": "openai_moderation", "input": "flag"}, "here it is `http`"),
        (
            {"name": "x", "kind": "http", "input": "flag", "url": "http://a"},
            "where the gateway's configuration says so",
        ),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "ANONYMIZE"}, "here it is `mask`"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "deny"}, "must be"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "output": "own"}, "must be"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "mask", "on_error": "ignore"}, "must be"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "mask", "roles": ["everybody"]}, "must be"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "input": "mask", "roles": []}, "must not be empty"),
        ({"name": "X 1", "kind": "pii", "entities": ["email"], "input": "mask"}, "small letters"),
        ({"name": "x", "kind": "pattern", "pattern": "(?=a)b", "input": "block"}, "look-ahead"),
        ({"name": "x", "kind": "pattern", "pattern": r"(a)\1", "input": "block"}, "back-references"),
        ({"name": "x", "kind": "pattern", "pattern": "(", "input": "block"}, "RE2"),
        ({"name": "x", "kind": "pattern", "pattern": "a*", "input": "block"}, "empty text"),
        ({"name": "x", "kind": "pattern", "pattern": "(((a{1,100}){1,100}){1,100})", "input": "block"}, ""),
        ({"name": "email", "kind": "words", "words": ["a"], "input": "block"}, "is the name of a kind"),
        ({"guardrail_name": "x", "litellm_params": {}}, "another gateway's"),
        ({"name": "x", "litellm_params": {"guardrail": "presidio", "mode": "pre_call"}}, "stands in the rule itself"),
        (
            {"name": "x", "kind": "pii", "piiEntitiesConfig": [{"type": "EMAIL", "action": "BLOCK"}]},
            "one rule for each action",
        ),
        ({"name": "x", "kind": "pattern", "regex": "a"}, "it is called `pattern`"),
        ({"name": "x", "kind": "pii", "entities": ["email"], "imput": "mask"}, "is no key of a rule"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_what_to_do(rule: dict[str, Any], told: str) -> None:
    """(39, 51) Nothing is decoded and then dropped."""
    with pytest.raises(BadRules) as refused:
        checked_rules([rule])
    assert told in str(refused.value)
    assert str(refused.value).startswith("rules.0")


def test_two_rules_have_two_names() -> None:
    with pytest.raises(BadRules, match="two rules are called `mails`"):
        checked_rules([MAILS, MAILS])


def test_refusals_do_not_repeat_what_is_looked_for() -> None:
    """A list of words may be a secret itself."""
    with pytest.raises(BadRules) as refused:
        checked_rules([{"name": "x", "kind": "words", "words": ["bluebird"] * 1_001, "input": "mask"}])
    assert "bluebird" not in str(refused.value)


def test_rules_are_stored_and_read_again() -> None:
    rules = checked_rules(
        [
            MAILS,
            {
                "name": "w",
                "kind": "words",
                "words": ["a b"],
                "input": "block",
                "output": "flag",
                "roles": ["tool"],
                "on_error": "open",
            },
        ]
    )
    assert read_rules(stored(rules)) == rules
    assert stored(()) == ""
    assert read_rules("") == ()


def test_stored_rules_that_are_none_any_more_are_not_passed_over() -> None:
    with pytest.raises(ValueError, match="kind"):
        read_rules('[{"name": "x", "kind": "gone", "input": "block"}]')


@pytest.mark.parametrize("asked", [{"kind": "http", "url": "http://a"}, {"kind": "plugin", "use": "house"}])
def test_stored_rules_name_no_service_and_no_plugin(asked: dict[str, str]) -> None:
    """Texts are given to whom the configuration says, and to nobody whom a team says."""
    rule = {"name": "x", "input": "flag", **asked}
    with pytest.raises(ValueError, match="where the gateway's configuration says so"):
        read_rules(json.dumps([rule]))
    with pytest.raises(BadRules, match="where the gateway's configuration says so") as refused:
        checked_rules([rule])
    assert refused.value.key == "kind"


def test_an_address_may_be_an_own_engine() -> None:
    """A plain one in the same network, with a port."""
    rule = GuardRule(
        name="x",
        kind="http",
        input="flag",
        url="http://10.0.0.7:8000/v1/chat/completions",
        shape="llama_guard",
        model="m",
    )
    assert rule.looks_at == ("user", "tool")
