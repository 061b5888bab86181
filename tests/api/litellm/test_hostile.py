"""LiteLLM's admin routes with what no client of good will sends: each gets a refusal that says why, or a change that can be read back."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from api.litellm.sent import Sent
from proxy.errors import BadRequest
from tests.api.litellm.test_routes import Client, a_client

AMOUNTS: Final = [
    -1,
    1e308,
    1e28,
    1e10,
    10**400,
    "1e308",
    "1e-999999999",
    "1E+999999999",
    "NaN",
    "Infinity",
    True,
    [],
    [1],
    "٣٣x",
]
RATES: Final = [-1, 1e308, 10**400, 2**63, 1.5, "5", True, [1]]
TEXTS: Final = [
    "\x00",
    "\x00" * 5,
    "x" * 100_000,
    5,
    ["a"],
    {"a": "\x00"},
    "\u202e\U000e0041",
    "' OR 1=1 --",
    "%",
    "../../etc/passwd",
]
LISTS: Final = [["\x00"], ["x" * 2_000], ["x"] * 5_000, [5], "x", [["x"]], ["%"]]
TIMES: Final = ["9999999999d", "999999999y", "999999999mo", "0s", "-5d", "1e9d", "30d\x00", "٣d", 30]
SENT: Final[dict[str, dict[str, list[Any]]]] = {
    "/key/generate": {
        "max_budget": AMOUNTS,
        "soft_budget": AMOUNTS,
        "rpm_limit": RATES,
        "model_tpm_limit": [{"gpt-4o": each} for each in RATES] + [{"\x00": 1}, {"x" * 5_000: 1}],
        "duration": TIMES,
        "budget_duration": TIMES,
        "key_alias": TEXTS,
        "team_id": TEXTS,
        "user_id": TEXTS,
        "key": [*TEXTS, "sk-short", "sk-" + "é" * 20, "wb-" + "a" * 40],
        "models": LISTS,
        "tags": LISTS,
        "metadata": [{"a": "\x00"}, {"\x00": 1}, {"a": 10**400}, {"a": "x" * 100_000}, [1], "x"],
    },
    "/key/update": {"key": [*TEXTS, "key_", "key_\x00"], "max_budget": AMOUNTS, "models": LISTS},
    "/key/delete": {"keys": LISTS, "key_aliases": LISTS},
    "/team/new": {
        "team_id": [*TEXTS, " ", "a/b", "é"],
        "team_alias": TEXTS,
        "models": LISTS,
        "members_with_roles": [[{"user_email": each} for each in TEXTS], [{}], ["x"], "x"],
    },
    "/team/delete": {"team_ids": LISTS},
    "/user/new": {"user_email": TEXTS, "user_id": TEXTS, "teams": LISTS, "user_role": TEXTS},
}


async def _status(client: Client, path: str, body: dict[str, Any]) -> int:
    async with client.session.post(
        client.running.url + path,
        data=json.dumps(body),
        headers={"x-api-key": client.key, "content-type": "application/json"},
    ) as reply:
        text = await reply.text()
        assert reply.status < 500, (body, text)
        if reply.status >= 400:
            assert json.loads(text)["error"]["message"]
        return reply.status


async def test_no_value_is_an_error_of_ours(tmp_path: Path) -> None:
    """Each field with each odd value, one at a time."""
    async with a_client(tmp_path) as client:
        made = await client.post("/key/generate", {"team_id": "team_a", "key_alias": "there"})
        base = {"/key/update": {"key": made["token"]}, "/user/new": {"user_email": "ann@example.com"}}
        for path, fields in SENT.items():
            for field, values in fields.items():
                for value in values:
                    await _status(client, path, base.get(path, {}) | {field: value})
        # And nothing of it made the lists unreadable.
        for path in ("/key/list?return_full_object=true&size=100", "/team/list", "/key/info", "/model/info"):
            await client.get(path)


@pytest.mark.parametrize("value", AMOUNTS)
def test_an_amount_is_one_that_a_budget_can_have(value: object) -> None:
    """1e308 has more digits than any amount is rounded to."""
    sent = Sent({"max_budget": value}, {"max_budget"})
    if value == "1e-999999999":
        assert sent.amount("max_budget") == 0
        return
    with pytest.raises(BadRequest, match="amount of dollars"):
        sent.amount("max_budget")


@pytest.mark.parametrize(
    "fields", [{"keys": ["\x00"]}, {"metadata": {"a": [{"\x00": 1}]}}, {"model_rpm_limit": {"a\x00": 1}}]
)
def test_a_nul_is_refused_wherever_it_stands(fields: dict[str, Any]) -> None:
    """PostgreSQL fails on it, SQLite does not."""
    with pytest.raises(BadRequest, match="NUL"):
        Sent(fields, fields)


async def test_another_teams_key_opens_nothing(tmp_path: Path) -> None:
    """A member's key reads itself and its team, neither the hash of another key nor a list, and changes nothing."""
    async with a_client(tmp_path) as client:
        await client.post("/team/new", {"team_id": "team_z"})
        mine = await client.post("/key/generate", {"team_id": "team_z"})
        theirs = await client.post("/key/generate", {"team_id": "team_a", "key": "sk-0123456789abcdefghij"})
        for named in (theirs["token"], theirs["key"]):
            await client.get(f"/key/info?key={named}", 404, key=mine["key"])
        await client.get("/team/info?team_id=team_a", 404, key=mine["key"])
        for path in ("/key/list", "/team/list", "/user/info?user_id=ann@example.com"):
            await client.get(path, 403, key=mine["key"])
        for path in (
            "/key/generate",
            "/key/update",
            "/key/delete",
            "/team/new",
            "/team/update",
            "/team/delete",
            "/user/new",
        ):
            await client.post(path, {"key": mine["key"], "max_budget": 1e6, "role": "admin"}, 403, key=mine["key"])
        # What LiteLLM stores of a key is no key.
        from accounts.keys import token_of

        for forged in (
            token_of(theirs["key"]),
            theirs["token"],
            theirs["key"] + "x",
            theirs["key"][:-1],
            "sk-" + "0" * 200,
        ):
            await client.get("/key/info", 401, key=forged)
        await client.get("/key/info", key=theirs["key"])


async def test_no_field_makes_more_than_was_meant(tmp_path: Path) -> None:
    """Rights, ids and digests are no fields of a key."""
    async with a_client(tmp_path) as client:
        for field in ("role", "digest", "key_id", "organisation_id", "is_admin", "__class__", "pepper"):
            await client.post("/key/generate", {"team_id": "team_a", field: "admin"}, 400)
