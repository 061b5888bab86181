"""Who sees what: every route of finance, asked by everybody, with everything that somebody might try."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.wiring.web_app import web_app
from tests.api.finance import DAY_S, KEYS, Finance, Question, running_finance

pytestmark = pytest.mark.story

DAYS: Final = {"start_date": "2026-04-05", "end_date": "2026-04-06"}
BUCKETS: Final = {"start_time": str(DAY_S), "end_time": str(DAY_S + 172_800)}
OURS: Final[dict[str, dict[str, str]]] = {
    "/v1/usage": {
        "start": "2026-04-05",
        "end": "2026-04-07",
        "group_by": "team,key,model,provider,tier,tag",
    },
    "/v1/organization/usage/completions": {**BUCKETS, "group_by": "project_id,api_key_id,model"},
    "/v1/organization/usage/embeddings": {**BUCKETS, "group_by": "project_id,api_key_id,model"},
    "/v1/organization/costs": {**BUCKETS, "group_by": "project_id,api_key_id,line_item"},
    "/spend/logs": {**DAYS, "summarize": "false"},
    "/team/daily/activity": {**DAYS, "page_size": "30"},
    "/v1/focus": {"start": "2026-04-05", "end": "2026-04-07"},
    "/v1/savings": {"start": "2026-04-05", "end": "2026-04-07"},
    "/v1/budgets": {},
}
"""Questions that are answered with figures; a route that is not here is asked a few usual ones."""
NAMELESS: Final = frozenset({"/v1/organization/usage/embeddings", "/v1/savings"})
"""No team is named in their answers."""
USUAL: Final[list[dict[str, str]]] = [
    {},
    {"start": "2026-04-05", "end": "2026-04-07"},
    {"start": "2026-04-01", "end": "2026-05-01", "group_by": "team"},
    {"date": "2026-04-05"},
    {"month": "2026-04"},
]
NO_FINANCE: Final = frozenset(
    {
        "/metrics",
        "/v1/models",
        "/v1/models/{name:path}",
        "/v1/policy/preview",
        "/v1/feedback/summary",
    }
)
# What is told of nobody else: names of teams, keys and targets that only theirs have.
ALL_OF_ACME: Final = ("team_x", "team_y", "key_a", "key_a2", "key_b", "h100")
RIVALS: Final = ("team_q", "team_r", "key_r", "key_r2", "rivals-model")
FOREIGN: Final[dict[str, tuple[str, ...]]] = {
    "member x": (*RIVALS, "team_y", "key_b", "h100"),
    "member y": (*RIVALS, "team_x", "key_a", "h100"),
    "finance": RIVALS,
    "admin": RIVALS,
    "rival finance": ALL_OF_ACME,
    "rival admin": ALL_OF_ACME,
}
SEEN: Final[dict[str, str]] = {
    "member x": "team_x",
    "member y": "team_y",
    "finance": "team_x",
    "admin": "team_y",
    "rival finance": "team_r",
    "rival admin": "team_q",
}
PARAMETERS: Final = {
    "/v1/usage": ("team_id", "date", "start", "end", "group_by", "limit", "page", "key_id", "model", "tier", "tag"),
    "/v1/organization/usage/completions": ("start_time", "bucket_width", "limit", "page", "models[]", "batch"),
    "/v1/organization/costs": ("end_time", "project_ids[]", "api_key_ids", "group_by[]"),
    "/spend/logs": ("start_date", "request_id", "api_key", "user_id", "summarize", "limit", "page"),
    "/team/daily/activity": ("team_ids", "exclude_team_ids", "model", "page", "page_size"),
    "/v1/focus": ("start", "end", "granularity"),
    "/v1/savings": ("start", "end", "team_id"),
}
BUDGETS: Final = (
    ("admin", "team_x"),
    ("admin", "team_y"),
    ("rival admin", "team_q"),
    ("rival admin", "team_r"),
)
"""Who sets one for whom."""
HOSTILE: Final = (
    "' OR '1'='1",
    "team_y'; DROP TABLE ledger_entry; --",
    'team_r" UNION SELECT * FROM api_key --',
    "%",
    "*",
    "\x00",
    "é\U0001f4a3\u202e",
    "9" * 400,
    "-1",
    "1e999",
    "NaN",
    "0001-01-01",
    "9999-12-31",
    "2026-02-30",
    "2026-04-05T00:00:00+99:99",
    "x" * 3_000,
    "",
    "[]",
    "null",
)


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path) as running:
        yield running


def routes(finance: Finance) -> list[str]:
    """Every GET route of the gateway that tells figures to keys, whoever wrote it. Pages take none: test_matrix has them."""
    found = set(_paths(web_app().routes))
    assert found >= set(OURS)
    return sorted(path for path in found - NO_FINANCE if "{" not in path and not path.startswith("/dashboard"))


def _paths(routes: Sequence[Any]) -> Iterator[str]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from _paths(included.routes)
        elif "GET" in route.methods:
            yield route.path


async def test_nobody_sees_anybody_elses_books(finance: Finance) -> None:
    """Every route by every key, in every kind: no name of another tenant is in any answer; one's own is."""
    for who, team_id in BUDGETS:
        limit = {"scope": "team", "scope_id": team_id, "period": "month", "limit_usd": 10}
        assert (await finance.send(who, "PUT", f"/v1/budgets/{team_id}", limit)).status < 300
    asked = [
        Question(who, path, query, accept)
        for path in routes(finance)
        for who in FOREIGN
        for query in ([OURS[path]] if path in OURS else USUAL)
        for accept in ("application/json", "text/csv", "application/x-ndjson")
    ]
    answers = list(zip(asked, await finance.get_all(asked), strict=True))
    answered = {(question.path, question.who) for question, answer in answers if answer.status == 200}
    assert answered >= {(path, who) for path in OURS for who in FOREIGN}
    for question, answer in answers:
        assert answer.status in {200, 400, 403, 404, 406}, (question, answer)
        names = set(re.findall(r"[\w-]+", answer.text))
        assert not names.intersection(FOREIGN[question.who or ""]), (question, answer)
        if answer.status == 200 and question.path in OURS.keys() - NAMELESS:
            assert SEEN[question.who or ""] in names, question


async def test_only_admins_change_anything_and_only_their_own(finance: Finance) -> None:
    """Members and finance are refused; another organisation's team has no budget to be set, and none to be taken."""
    limit = {"scope": "team", "scope_id": "team_x", "period": "month", "limit_usd": 10}
    for who in ("member x", "finance"):
        for method, path, body in (
            ("PUT", "/v1/budgets/mine", limit),
            ("DELETE", "/v1/budgets/mine", None),
            ("PUT", "/v1/prices/only", {}),
            ("DELETE", "/v1/prices/only/test", None),
        ):
            assert (await finance.send(who, method, path, body)).refusal == (403, "admin_only", None)
    assert (await finance.send("admin", "PUT", "/v1/budgets/mine", limit)).status < 300
    assert (await finance.send("rival admin", "PUT", "/v1/budgets/theirs", limit)).status in {400, 404}
    assert (await finance.send("rival admin", "DELETE", "/v1/budgets/mine")).status in {403, 404}
    assert [each["id"] for each in (await finance.get("finance", "/v1/budgets")).body["data"]] == ["mine"]


async def test_no_key_no_books(finance: Finance) -> None:
    """Without a key, with one that was revoked or with nonsense for one: 401, and not a word more."""
    asked = [Question(who, path, OURS.get(path, "")) for path in routes(finance) for who in (None, "revoked")]
    for question, answer in zip(asked, await finance.get_all(asked), strict=True):
        assert answer.refusal == (401, "invalid_api_key", None), question


async def test_naming_others_finds_nothing(finance: Finance) -> None:
    """A filter for another's team, key or model is answered like one for what does not exist."""
    for path, params in (
        ("/v1/usage", ("team_id", "key_id", "model")),
        ("/v1/organization/usage/completions", ("project_ids[]", "api_key_ids[]", "models[]")),
        ("/v1/organization/costs", ("project_ids", "api_key_ids")),
        ("/spend/logs", ("request_id", "api_key")),
        ("/team/daily/activity", ("team_ids", "api_key", "model")),
    ):
        for param in params:
            for who in ("member x", "finance"):
                told = {}
                for kind, value in (("theirs", _theirs(param)), ("nobody's", f"{_theirs(param)}_nobody")):
                    answer = await finance.get(who, path, {**OURS[path], param: value})
                    told[kind] = (answer.status, answer.text.replace(f"{value}`", "`"))
                assert told["theirs"] == told["nobody's"], (path, param, who)


def _theirs(param: str) -> str:
    if "key" in param:
        return "key_r"
    if "model" in param:
        return "rivals-model"
    return "r1" if param == "request_id" else "team_r"


async def test_hostile_values_are_refused_or_find_nothing(finance: Finance) -> None:
    """Whatever a parameter says, alone or twice: never a failure of ours, never another's row; and the tables stay."""
    before = await finance.totals("acme")
    asked = [
        Question("member x", path, [*_without(path, name), *times * [(name, value)]])
        for path, names in PARAMETERS.items()
        for name in names
        for value in HOSTILE
        for times in ((1, 2) if value == HOSTILE[0] else (1,))
    ]
    for question, answer in zip(asked, await finance.get_all(asked), strict=True):
        assert answer.status in {200, 400, 404}, (question, answer)
        rows = answer.text if answer.status == 200 else ""
        assert not [each for each in FOREIGN["member x"] if f'"{each}"' in rows], (question, answer)
    assert await finance.totals("acme") == before


def _without(path: str, name: str) -> list[tuple[str, str]]:
    return [(key, text) for key, text in OURS[path].items() if key != name.removesuffix("[]")]


@pytest.mark.long
async def test_the_other_routes_take_hostile_values_too(finance: Finance) -> None:
    """The routes that are not known here answer nonsense with a refusal, and never fail."""
    names = ("start", "end", "date", "month", "team_id", "group_by", "limit", "page", "version", "target")
    asked = [
        Question("finance", path, [(name, value)])
        for path in set(routes(finance)) - set(PARAMETERS)
        for name in names
        for value in HOSTILE
    ]
    for question, answer in zip(asked, await finance.get_all(asked), strict=True):
        assert answer.status < 500, (question, answer)


async def test_a_finance_key_changes_nothing_and_calls_nothing(finance: Finance) -> None:
    """403 with a clear word for models and feedback; a member's and an admin's key do both."""
    chat: dict[str, Any] = {"model": "only", "messages": [{"role": "user", "content": "hello"}]}
    refused = await finance.send("finance", "POST", "/v1/chat/completions", chat)
    assert refused.refusal == (403, "finance_reads_only", None)
    assert "finance" in refused.body["error"]["message"]
    feedback = await finance.send("finance", "POST", "/v1/feedback", {"request_id": "req_1", "rating": 1})
    assert feedback.refusal == (403, "finance_reads_only", None)
    for who in ("member x", "admin"):
        assert (await finance.send(who, "POST", "/v1/chat/completions", chat)).status == 200
        # No such request, but that was looked for.
        unknown = await finance.send(who, "POST", "/v1/feedback", {"request_id": "req_1", "rating": 1})
        assert unknown.refusal == (404, "request_not_found", "request_id")


def test_everybody_is_asked() -> None:
    """The matrix has every key that there is."""
    assert {*FOREIGN, "revoked"} == set(KEYS)
