"""Our answers beside those of LiteLLM 1.106.2, field by field: `recorded.json` has the kinds that a real one with a database gave."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.api.litellm.test_routes import Client, a_client

RECORDED: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("recorded.json").read_text())
WHO: Final = {"created_by", "updated_by", "updated_at", "settings_updated_at"}
"""Who changed what, and when, is in the audit log."""
ABSENT: Final[dict[str, set[str]]] = {
    "team_new": WHO,
    "team_update": WHO,
    "team_list": WHO | {"keys", "team_memberships"},
    "team_info": WHO | {"caller_edit_access", "model_max_budget_usage"},
    "key_generate": WHO,
    "key_info": WHO | {"status"},
    "key_update": WHO,
    "key_list_full": WHO | {"is_session_token", "team_blocked", "team_models"},
    # A person gets no key by being invited.
    "user_new": WHO | set(RECORDED["key_generate"]),
    "user_info": WHO | {"model_max_budget_usage", "organization_memberships"},
    "user_list": WHO,
    # What a deployment is called at its provider is told, and where and with what it is called is not.
    "model_info": {
        *("access_via_team_ids", "direct_access", "key", "member_auto_router", "pricing_overrides", "litellm_params"),
        "supported_openai_params",
    },
    # The books have neither prompts nor addresses of callers.
    "spend_logs": {
        *("messages", "response", "proxy_server_request", "requester_ip_address", "session_id", "litellm_call_id"),
        *("billing_agent_id", "cache_key", "model_id", "created_at", "updated_at", "api_base", "completionStartTime"),
        *("organization_id", "request_duration_ms", "status"),
    },
    "models": {"mode"},
    "health_readiness": {"db"},
}
"""Fields of theirs that ours has not, or has otherwise."""


def differences(theirs: Any, ours: Any, without: set[str], path: str = "") -> list[str]:
    """What a client that goes by theirs would miss in ours. A null of theirs says nothing."""
    if isinstance(theirs, dict):
        if not isinstance(ours, dict):
            return [f"{path} is no object"]
        return [
            each
            for name, kind in theirs.items()
            if name not in without
            for each in (
                differences(kind, ours[name], without, f"{path}.{name}")
                if name in ours
                else []
                if kind == "null"
                else [f"{path}.{name} is missing"]
            )
        ]
    if isinstance(theirs, list):
        if not isinstance(ours, list):
            return [f"{path} is no list"]
        return differences(theirs[0], ours[0], without, f"{path}[0]") if theirs and ours else []
    kinds: dict[str, Any] = {"flag": bool, "number": int | float, "text": str, "null": object}
    return [] if ours is None or isinstance(ours, kinds[theirs]) else [f"{path} is {type(ours).__name__}, not {theirs}"]


async def calls(client: Client) -> dict[str, Any]:
    """The calls of the recording, made here."""
    said: dict[str, Any] = {}
    bounds = {"max_budget": 100, "budget_duration": "30d", "tpm_limit": 1000, "rpm_limit": 10}
    team = {"team_id": "rec-team", "team_alias": "Recorded", "models": ["gpt-4o"], "metadata": {"cost_centre": "7"}}
    said["team_new"] = await client.post("/team/new", team | bounds)
    said["team_update"] = await client.post("/team/update", {"team_id": "rec-team", "max_budget": 200})
    said["team_info"] = await client.get("/team/info?team_id=rec-team")
    said["team_list"] = [each for each in await client.get("/team/list") if each["team_id"] == "rec-team"]
    key = {
        "team_id": "rec-team",
        "key_alias": "rec key",
        "models": ["gpt-4o"],
        "metadata": {"a": "b"},
        "duration": "30d",
    }
    said["key_generate"] = await client.post(
        "/key/generate", key | {"max_budget": 5, "budget_duration": "30d", "rpm_limit": 3}
    )
    made = said["key_generate"]["key"]
    said["key_info"] = await client.get(f"/key/info?key={made}")
    said["key_update"] = await client.post("/key/update", {"key": made, "max_budget": 6})
    said["key_list"] = await client.get("/key/list?page=1&size=10")
    said["key_list_full"] = await client.get("/key/list?page=1&size=10&return_full_object=true&team_id=rec-team")
    person = {"user_email": "rec@example.com", "user_role": "internal_user", "user_id": "rec-user"}
    said["user_new"] = await client.post("/user/new", person)
    said["user_info"] = await client.get("/user/info?user_id=rec-user")
    said["user_list"] = await client.get("/user/list?user_ids=rec-user")
    said["model_info"] = await client.get("/model/info")
    said["models"] = await client.get("/models")
    said["health_readiness"] = await client.get("/health/readiness")
    asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
    await client.post("/chat/completions", asked, key=made)
    await client.running.rows()
    said["spend_logs"] = await client.get("/spend/logs")
    said["key_delete"] = await client.post("/key/delete", {"keys": [made]})
    said["team_delete"] = await client.post("/team/delete", {"team_ids": ["rec-team"]})
    said["user_delete"] = await client.post("/user/delete", {"user_ids": ["rec-user"]})
    return said


async def test_ours_has_what_theirs_has(tmp_path: Path) -> None:
    """Every field that theirs has a value in is in ours, of the same kind, but for those that are told above."""
    async with a_client(tmp_path) as client:
        ours = await calls(client)
    assert set(ours) == set(RECORDED)
    missed = {name: differences(RECORDED[name], ours[name], ABSENT.get(name, set())) for name in RECORDED}
    assert {name: found for name, found in missed.items() if found} == {}


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [
        ({"a": "text"}, {}, [".a is missing"]),
        ({"a": "null"}, {}, []),
        ({"a": ["number"]}, {"a": ["x"]}, [".a[0] is str, not number"]),
        ({"a": {}}, {"a": []}, [".a is no object"]),
        ({"a": []}, {"a": {}}, [".a is no list"]),
    ],
)
def test_a_difference_is_found(theirs: Any, ours: Any, found: list[str]) -> None:
    assert differences(theirs, ours, set()) == found
