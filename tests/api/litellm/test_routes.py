"""LiteLLM's admin routes, with requests as its documentation and the Terraform provider send them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from accounts.audit.log import AuditLog, Scope
from accounts.keys import token_of
from accounts.people.people import PeopleStore
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.running_gateway import PEPPER, Running, model, running_gateway

pytestmark = pytest.mark.story

ON: Final = {"litellm_routes": True, "imported_keys": True}
MODELS: Final = [
    model("gpt-4o", [{"kind": "scripted", "upstream_model": "ok"}], max_output_tokens=4_096),
    model("text-embedding-3-small", [{"kind": "scripted"}], capabilities=["embeddings"]),
]
# As the provider sends a key that has nothing but its models.
ZEROES: Final[dict[str, Any]] = {
    "team_id": "",
    "max_parallel_requests": 0,
    "metadata": {},
    "tpm_limit": 0,
    "rpm_limit": 0,
    "budget_duration": "",
    "aliases": {},
    "permissions": {},
    "model_max_budget": {},
    "model_rpm_limit": {},
    "model_tpm_limit": {},
    "guardrails": [],
    "blocked": False,
}


class Client:
    """A client with an administrator's key, which it sends as Terraform's provider does."""

    def __init__(self, session: aiohttp.ClientSession, running: Running, key: str) -> None:
        self.session = session
        self._running = running
        self.running = running
        self.key = key

    async def post(self, path: str, body: Any, status: int = 200, *, key: str | None = None) -> Any:
        """Send a body, and return the reply's."""
        headers = {"x-api-key": key or self.key, "accept": "application/json"}
        async with self.session.post(self._running.url + path, json=body, headers=headers) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()

    async def get(self, path: str, status: int = 200, *, key: str | None = None) -> Any:
        """Ask, and return the reply's body."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        async with self.session.get(self._running.url + path, headers=headers) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()


@contextlib.asynccontextmanager
async def a_client(folder: Path, **accounts: Any) -> AsyncIterator[Client]:
    """A gateway with these routes, and a client of it."""
    section = ON | {"fresh_s": 0.001} | accounts
    async with running_gateway(folder, MODELS, accounts=section) as running, aiohttp.ClientSession() as session:
        from pydantic import SecretStr

        environment = Environment(data_dir=folder, pepper=SecretStr(PEPPER))
        pepper = peppers(load(running.config_path, environment), environment)[0]
        minted = await running.accounts.create_key("team_a", "admin", pepper, role="admin")
        yield Client(session, running, minted.plaintext)


async def test_a_key_from_first_to_last_as_terraform_has_it(tmp_path: Path) -> None:
    """Made, read, changed with all of the provider's zeroes, read again, deleted, and then not there."""
    async with a_client(tmp_path) as client:
        made = await client.post(
            "/key/generate",
            {
                "models": ["gpt-4o"],
                "max_budget": 10.5,
                "budget_duration": "30d",
                "key_alias": "ci",
                "duration": "90d",
                "tpm_limit": 1000,
                "rpm_limit": 10,
                "max_parallel_requests": 2,
                "metadata": {"owner": "ci", "cost_centre": "42"},
                "tags": ["a"],
                "user_id": "u1",
                "soft_budget": 8,
                "aliases": {},
                "config": {},
                "permissions": {},
                "guardrails": [],
                "allowed_cache_controls": [],
            },
        )
        assert made["key"].startswith("wb-")
        assert made["token"] == made["token_id"]
        answer = await client.get("/v1/models", key=made["key"])
        assert "gpt-4o" in {each["id"] for each in answer["data"]}
        told = (await client.get(f"/key/info?key={made['key']}"))["info"]
        for name, value in {
            "models": ["gpt-4o"],
            "max_budget": 10.5,
            "soft_budget": 8,
            "budget_duration": "30d",
            "key_alias": "ci",
            "tpm_limit": 1000,
            "rpm_limit": 10,
            "max_parallel_requests": 2,
            "metadata": {"owner": "ci", "cost_centre": "42"},
            "tags": ["a"],
            "user_id": "u1",
            "team_id": "team_a",
            "spend": 0,
            "blocked": False,
        }.items():
            assert told[name] == value, name
        assert told["expires"] is not None
        # Nothing changes what was not said, and a rate of 0 lifts it.
        again = await client.post(
            "/key/update", ZEROES | {"key": made["key"], "key_alias": "ci", "models": ["gpt-4o"], "max_budget": 20}
        )
        assert (again["max_budget"], again["rpm_limit"], again["budget_duration"]) == (20, None, "30d")
        blocked = await client.post("/key/update", {"key": made["token"], "blocked": True})
        assert blocked["blocked"]
        assert await client.post("/key/delete", {"keys": [made["key"]]}) == {"deleted_keys": [made["key"]]}
        assert made["token"] not in (await client.get("/key/list?size=100"))["keys"]


async def test_a_team_from_first_to_last_as_terraform_has_it(tmp_path: Path) -> None:
    """The provider chooses the id, reads fields at the top or below, and finds nothing after it was deleted."""
    team_id = "8061d474-08aa-4319-be33-4d17858e8ece"
    async with a_client(tmp_path) as client:
        await client.post(
            "/team/new",
            {
                "team_id": team_id,
                "team_alias": "Payments",
                "metadata": {"env": "prod"},
                "tpm_limit": 5000,
                "rpm_limit": 50,
                "max_budget": 100.0,
                "budget_duration": "7d",
                "models": ["gpt-4o"],
            },
        )
        found = await client.get(f"/team/info?team_id={team_id}")
        for place in (found, found["team_info"]):
            assert (place["team_alias"], place["max_budget"], place["budget_duration"]) == ("Payments", 100, "7d")
            assert (place["models"], place["metadata"], place["rpm_limit"]) == (["gpt-4o"], {"env": "prod"}, 50)
        await client.post("/team/new", {"team_id": team_id, "team_alias": "Again"}, 409)
        changed = await client.post(
            "/team/update",
            {"team_id": team_id, "team_alias": "Billing", "models": [], "max_budget": 50.0, "budget_duration": "1d"},
        )
        assert (changed["team_alias"], changed["models"], changed["budget_duration"]) == ("Billing", [], "1d")
        made = await client.post("/key/generate", {"team_id": team_id, "key_alias": "one"})
        assert [each["key_alias"] for each in (await client.get(f"/team/info?team_id={team_id}"))["keys"]] == ["one"]
        assert await client.post("/team/delete", {"team_ids": [team_id]}) == {"deleted_teams": [team_id]}
        await client.get(f"/team/info?team_id={team_id}", 404)
        assert team_id not in {each["team_id"] for each in await client.get("/team/list")}
        await client.get("/v1/models", 401, key=made["key"])


async def test_keys_as_the_documentation_makes_them(tmp_path: Path) -> None:
    """Curl's examples: models and a duration alone, a key of one's own choice, the one that asks, an alias to delete by."""
    async with a_client(tmp_path) as client:
        made = await client.post(
            "/key/generate", {"models": ["gpt-4o"], "duration": "20m", "metadata": {"user": "ishaan@berri.ai"}}
        )
        assert made["expires"]
        own = await client.post("/key/generate", {"key": "sk-my-own-key-0123456789", "key_alias": "own"})
        assert own["key"] == "sk-my-own-key-0123456789"
        mine = await client.get("/key/info", key="sk-my-own-key-0123456789")
        assert mine["info"]["token"] == own["token"]
        by_hash = await client.get(f"/key/info?key={token_of('sk-my-own-key-0123456789')}")
        assert by_hash["info"]["key_alias"] == "own"
        await client.get(f"/key/info?key={made['token']}", 404, key="sk-my-own-key-0123456789")
        page = await client.get("/key/list?page=1&size=2&return_full_object=true&team_id=team_a")
        assert (len(page["keys"]), page["total_count"], page["total_pages"]) == (2, 4, 2)
        for asked, found in (
            (f"key_hash={own['token']}&key_alias=own", [own["token"]]),
            ("key_alias=own&user_id=x", []),
        ):
            assert (await client.get(f"/key/list?{asked}"))["keys"] == found
        await client.post("/key/delete", {"key_aliases": ["own"]})
        await client.get("/v1/models", 401, key="sk-my-own-key-0123456789")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/key/generate", {"aliases": {"gpt-4": "gpt-4o"}}, "policy.aliases"),
        ("/key/generate", {"permissions": {"get_spend_routes": True}}, "role"),
        ("/key/generate", {"guardrails": ["pii"]}, "guard"),
        ("/key/generate", {"budget_id": "tier"}, "max_budget"),
        ("/key/generate", {"something_new": 1}, "no field that is known"),
        ("/key/generate", {"spend": 12.5}, "topups"),
        ("/key/generate", {"key_type": "read_only"}, "role"),
        ("/key/generate", {"key_type": "management"}, "role"),
        ("/key/generate", {"key_type": ["llm_api"]}, "role"),
        ("/key/generate", {"duration": "30d", "duration_unit": "h"}, "no field that is known"),
        ("/key/update", {"key": "sk-1", "spend": 0}, "topups"),
        ("/team/update", {"team_id": "team_a", "spend": 0.0}, "topups"),
        ("/user/update", {"user_id": "u", "spend": 3}, "topups"),
        ("/key/generate", {"duration": "soon"}, "30d"),
        ("/key/generate", {"max_budget": 1, "budget_duration": "45d"}, "budget_duration"),
        ("/key/generate", {"max_budget": "a lot"}, "dollars"),
        ("/key/generate", {"max_budget": -1}, "dollars"),
        ("/key/generate", {"rpm_limit": 1.5}, "whole number"),
        ("/key/generate", {"models": "gpt-4o"}, "list of texts"),
        ("/key/generate", {"models": ["nowhere"]}, "no model"),
        ("/key/generate", {"key": "sk-1234"}, "sk-"),
        ("/key/generate", {"key": "my-key-0123456789abc"}, "sk-"),
        ("/key/generate", {"metadata": {"a": "x" * 20_000}}, "characters"),
        ("/key/generate", {"organization_id": "other"}, "organisation"),
        ("/key/update", {"models": []}, "`key` says"),
        ("/key/delete", {}, "`keys` says"),
        ("/team/update", {"team_alias": "x"}, "`team_id` says"),
        ("/team/delete", {}, "`team_ids` says"),
        ("/user/new", {"user_id": "u"}, "user_email"),
        ("/user/new", {"user_email": "a@example.com", "user_role": "king"}, "user_role"),
        ("/model/new", {"model_name": "x", "litellm_params": {"model": "openai/x"}}, "configuration"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(tmp_path: Path, path: str, body: dict[str, Any], words: str) -> None:
    """Each with a sentence that says what to do instead; nothing is taken in silence."""
    async with a_client(tmp_path) as client:
        before = len(await client.running.accounts.list_keys())
        told = await client.post(path, body, 400)
        assert words in told["error"]["message"]
        if "metadata" not in body and "rpm_limit" not in body and "max_budget" not in body:
            assert len(await client.running.accounts.list_keys()) == before


async def test_what_says_nothing_is_taken(tmp_path: Path) -> None:
    """A `spend` of 0 is that of every new key, and a type that every key is; LiteLLM's pages tick the mail of an invitation."""
    async with a_client(tmp_path) as client:
        for kind in ("default", "llm_api", None):
            made = await client.post("/key/generate", {"spend": 0, "key_type": kind, "created_by": "u1"})
            changed = await client.post(
                "/key/update", {"key": made["key"], "key_type": kind, "spend": None, "rpm_limit": 7}
            )
            assert changed["rpm_limit"] == 7
        await client.post("/user/new", {"user_email": "a@example.com", "send_invite_email": True})


async def test_rights_are_those_of_the_admin_api(tmp_path: Path) -> None:
    """A member's key changes nothing and reads itself and its team; another organisation's things are not there."""
    async with a_client(tmp_path) as client:
        member = client.running.key
        for path, body in (
            ("/key/generate", {}),
            ("/key/update", {"key": member, "max_budget": 1000}),
            ("/key/delete", {"keys": [member]}),
            ("/team/new", {"team_alias": "x"}),
            ("/team/update", {"team_id": "team_a", "max_budget": 1}),
            ("/team/delete", {"team_ids": ["team_a"]}),
            ("/user/new", {"user_email": "a@example.com"}),
            ("/model/new", {}),
        ):
            await client.post(path, body, 403, key=member)
        for path in ("/key/list", "/team/list", "/user/info?user_id=x"):
            await client.get(path, 403, key=member)
        assert (await client.get("/team/info?team_id=team_a", key=member))["team_id"] == "team_a"
        accounts = client.running.accounts
        await accounts.create_organisation("acme")
        await accounts.create_team("theirs", organisation_id="acme")
        await client.get("/team/info?team_id=theirs", 404)
        await client.post("/key/generate", {"team_id": "theirs"}, 404)
        await client.get("/key/info", 401, key="sk-nobody-knows-this-key")


async def test_off_they_are_not_there(tmp_path: Path) -> None:
    """Without the setting no address is served, whoever asks; health is, under LiteLLM's names, for everybody."""
    async with a_client(tmp_path, litellm_routes=False) as client:
        await client.post("/key/generate", {}, 404)
        for path in ("/key/info", "/team/list", "/model/info"):
            await client.get(path, 404)
        for path in ("/health", "/health/liveliness", "/health/liveness", "/health/readiness"):
            await client.get(path, key="nobody")


async def test_users_are_people(tmp_path: Path) -> None:
    """Invited by address with a role and teams; found by the client's own id."""
    async with a_client(tmp_path) as client:
        body = {
            "user_id": "ada-1",
            "user_email": "Ada@example.com",
            "user_role": "proxy_admin_viewer",
            "teams": ["team_a"],
        }
        made = await client.post("/user/new", body)
        assert (made["user_id"], made["user_role"], made["teams"], made["key"]) == (
            "ada-1",
            "proxy_admin_viewer",
            ["team_a"],
            None,
        )
        person = await PeopleStore(client.running.engine).find("ada@example.com")
        assert person is not None
        assert person.role == "finance"
        for user_id in ("ada-1", "ada@example.com"):
            assert (await client.get(f"/user/info?user_id={user_id}"))["user_info"]["user_email"] == "ada@example.com"
        await client.post("/user/new", body, 409)
        await client.get("/user/info?user_id=nobody", 404)


@pytest.mark.parametrize("path", ["/model/info", "/v1/model/info"])
async def test_models_with_their_facts(tmp_path: Path, path: str) -> None:
    """Mode, lengths and the price of a token, without keys and addresses."""
    async with a_client(tmp_path) as client:
        found = {each["model_name"]: each for each in (await client.get(path))["data"]}
        info = found["gpt-4o"]["model_info"]
        assert (info["mode"], info["max_input_tokens"], info["max_output_tokens"]) == ("chat", 32_000, 4_096)
        assert info["input_cost_per_token"] == pytest.approx(2.5e-6)
        assert found["text-embedding-3-small"]["model_info"]["mode"] == "embedding"
        assert found["gpt-4o"]["litellm_params"].keys() == {"model"}


async def test_they_are_described_where_they_are_served(tmp_path: Path) -> None:
    """The OpenAPI document has them, where they are on."""
    async with a_client(tmp_path) as client:
        assert "/key/generate" in (await client.get("/v1/openapi.json"))["paths"]


async def test_each_change_is_audited(tmp_path: Path) -> None:
    """The log has who did what, and no key."""
    async with a_client(tmp_path) as client:
        made = await client.post(
            "/key/generate", {"key": "sk-my-own-key-0123456789", "key_alias": "own", "max_budget": 1}
        )
        entries = await AuditLog(client.running.engine).page(Scope(organisation_id="default"))
        assert {each.action for each in entries} >= {"key.imported", "budget.set"}
        assert all(each.actor_kind == "key" for each in entries)
        assert all("sk-my-own" not in f"{each.before}{each.after}{each.object_id}" for each in entries)
        assert made["token"] in {each.object_id for each in entries}


async def test_spending_is_told_as_litellm_tells_it(tmp_path: Path) -> None:
    """GET /spend/logs and /key/info agree on what a call cost."""
    async with a_client(tmp_path) as client:
        made = await client.post("/key/generate", {"max_budget": 5, "budget_duration": "1d"})
        await client.post(
            "/v1/chat/completions",
            {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]},
            key=made["key"],
        )
        await client.running.rows()
        told = (await client.get(f"/key/info?key={made['key']}"))["info"]
        assert told["spend"] > 0
        logged = await client.get(f"/spend/logs?api_key={made['token']}")
        assert sum(each["spend"] for each in logged) == pytest.approx(told["spend"])
