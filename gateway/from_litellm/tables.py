"""LiteLLM's database, read once as it is at one moment, and never written: its tables as plain rows.

Versions differ in their columns, so whole rows are read, and what a row does not have is None. A table that is not there has no rows.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import date
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.configuration.file import ConfigError, Document, Problem, parse_document
from gateway.database import make_engine
from gateway.database_address import database_kind
from gateway.from_litellm.sealed import NeedsPyNaCl, NotOpened, open_sealed
from gateway.from_litellm.told import Account

Row = Mapping[str, Any]
_ESCAPED: Final = re.compile(r"[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What stands in YAML only escaped."""
_PRISMAS: Final = frozenset(
    {
        "connection_limit",
        "pool_timeout",
        "socket_timeout",
        "pgbouncer",
        "sslaccept",
        "sslidentity",
        "statement_cache_size",
        "schema",
    }
)
"""Parameters of an address that Prisma alone reads."""
_TABLES: Final[Mapping[str, tuple[str, int]]] = {
    "budgets": ("LiteLLM_BudgetTable", 100_000),
    "organisations": ("LiteLLM_OrganizationTable", 10_000),
    "organisation_members": ("LiteLLM_OrganizationMembership", 100_000),
    "teams": ("LiteLLM_TeamTable", 20_000),
    "team_members": ("LiteLLM_TeamMembership", 100_000),
    "aliases": ("LiteLLM_ModelTable", 20_000),
    "users": ("LiteLLM_UserTable", 100_000),
    "keys": ("LiteLLM_VerificationToken", 200_000),
    "end_users": ("LiteLLM_EndUserTable", 100_000),
    "tags": ("LiteLLM_TagTable", 10_000),
    "models": ("LiteLLM_ProxyModelTable", 2_000),
    "credentials": ("LiteLLM_CredentialsTable", 2_000),
    "access_groups": ("LiteLLM_AccessGroupTable", 10_000),
    "config": ("LiteLLM_Config", 1_000),
}
"""Our word for each table, its name, and the most rows that are read."""
_LEFT_BEHIND: Final[Mapping[str, str]] = {
    "LiteLLM_ProjectTable": "projects: a key belongs to its team",
    "LiteLLM_MCPServerTable": "MCP servers: no MCP gateway here",
    "LiteLLM_GuardrailsTable": "guardrails: write rules under `guard` (docs/guard.md)",
    "LiteLLM_PolicyTable": "policies: write rules under `guard` (docs/guard.md)",
    "LiteLLM_PromptTable": "prompts: no store of prompts here",
    "LiteLLM_ManagedVectorStoresTable": "vector stores: none here",
    "LiteLLM_SearchToolsTable": "search tools: a provider's own web search passes through",
    "LiteLLM_AgentsTable": "agents: none here",
    "LiteLLM_ManagedObjectTable": "batches and fine-tunings under way: they end where they began",
}
"""Tables whose rows nothing here has a place for, and what to do instead."""
_NEEDED: Final = "LiteLLM_VerificationToken"
_SECTIONS: Final = frozenset({"litellm_settings", "router_settings", "general_settings", "environment_variables"})
_MOST_DAYS: Final = 1_000_000
_DAYS: Final = "spending by day, which a later --since makes shorter,"
_UNOPENED: Final = "sealed: set LITELLM_SALT_KEY (else LITELLM_MASTER_KEY) as LiteLLM has it, and import again"
_NO_PYNACL: Final = "sealed by NaCl, which needs PyNaCl: pip install 'weighbridge[litellm]', and import again"
FILE: Final = "database"


class Theirs(msgspec.Struct, kw_only=True):
    """All that is read of a database, by our words for its tables."""

    rows: dict[str, list[Row]] = {}
    spent: list[Row] = []
    """Spending by day, team, key, model and provider."""
    has_days: bool = True
    """False for a version that sums nothing by day."""
    spent_by_end_users: list[Row] = []
    left_behind: list[tuple[str, int]] = []
    """Words for what nothing here has a place for, and how many rows there are."""

    def __getitem__(self, table: str) -> list[Row]:
        return self.rows.get(table, [])


async def read_theirs(url: str, since: date) -> Theirs:
    """Read the database, days before `since` as one. Raises ConfigError where it is none of LiteLLM's, or too large."""
    async with _snapshot(url) as connection:
        there = set(
            await connection.scalars(
                text(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false))"
                )
            )
        )
        if _NEEDED not in there:
            raise _problem(f"this database has no table {_NEEDED}: it is none of LiteLLM's")
        theirs = Theirs()
        for word, (table, most) in _TABLES.items():
            if table in there:
                theirs.rows[word] = await _rows(connection, f'SELECT * FROM "{table}"', most, table)  # noqa: S608 - our own names
        for table, words in _LEFT_BEHIND.items():
            number = await connection.scalar(text(f'SELECT count(*) FROM "{table}"')) if table in there else 0  # noqa: S608
            if number:
                theirs.left_behind.append((words, int(number)))
        days = {"since": since.isoformat()}
        theirs.has_days = "LiteLLM_DailyUserSpend" in there
        if "LiteLLM_DailyTeamSpend" in there:
            theirs.spent += await _rows(
                connection, _daily("LiteLLM_DailyTeamSpend", "team_id"), _MOST_DAYS, _DAYS, days
            )
        if "LiteLLM_DailyUserSpend" in there:
            theirs.spent += await _rows(connection, _daily("LiteLLM_DailyUserSpend", "NULL"), _MOST_DAYS, _DAYS, days)
        if "LiteLLM_DailyEndUserSpend" in there:
            query = _daily("LiteLLM_DailyEndUserSpend", "NULL", "end_user_id")
            theirs.spent_by_end_users = await _rows(connection, query, _MOST_DAYS, _DAYS, days)
    return theirs


def _daily(table: str, team: str, end_user: str = "NULL") -> str:
    """Return the query for what was spent by day. The names are our own; what differs between versions is left out."""
    groups = {
        "team_id": team,
        "end_user": end_user,
        "day": "CASE WHEN date < :since THEN '' ELSE date END",
        "api_key": "api_key",
        "model": "COALESCE(NULLIF(model_group, ''), model, '')",
        "provider": "COALESCE(custom_llm_provider, '')",
    }
    columns = ", ".join(f"{expression} AS {name}" for name, expression in groups.items())
    places = ", ".join(str(place) for place, each in enumerate(groups.values(), 1) if each != "NULL")
    sums = "SUM(spend) AS spend, SUM(prompt_tokens) AS input_tokens, SUM(completion_tokens) AS output_tokens"
    return f'SELECT {columns}, {sums} FROM "{table}" GROUP BY {places}'  # noqa: S608 - our own names


@contextlib.asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that sees one moment and can write nothing."""
    if database_kind(url) != "postgresql":
        raise _problem("LiteLLM's database is PostgreSQL: postgresql://USER:PASSWORD@HOST:5432/NAME")
    engine = make_engine(_plain(url))
    try:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            schema = dict(parse_qsl(urlsplit(url).query)).get("schema")
            if schema:
                await connection.execute(text("SELECT set_config('search_path', :schema, true)"), {"schema": schema})
            yield connection
    finally:
        await engine.dispose()


def _plain(url: str) -> str:
    """Return the address without what only Prisma reads."""
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name not in _PRISMAS]
    return urlunsplit(parts._replace(query=urlencode(kept)))


async def _rows(
    connection: AsyncConnection, query: str, most: int, what: str, values: Mapping[str, Any] | None = None
) -> list[Row]:
    found = await connection.execute(text(f"{query} LIMIT {most + 1}"), dict(values or {}))
    rows = found.mappings().all()
    if len(rows) > most:
        raise _problem(f"{what} has more than {most:,} rows, the most that are read at once")
    return [dict(row) for row in rows]


def _problem(words: str) -> ConfigError:
    return ConfigError([Problem("", 0, "", words)])


def documents_of(theirs: Theirs, salt_key: str | None, account: Account) -> list[Document]:
    """Return LiteLLM's models, credentials and settings of the database, as if they stood in its file."""
    opener = _Opener(salt_key)
    values: dict[str, Any] = {}
    rows = sorted(theirs["models"], key=lambda row: str(row.get("model_id")))
    names = Counter(_public_name(row) for row in rows)
    models = [_model(row, opener, account, is_free=names[_public_name(row)] == 1) for row in rows]
    if found := [each for each in models if each is not None]:
        values["model_list"] = found
    if theirs["credentials"]:
        values["credential_list"] = [
            {
                "credential_name": row.get("credential_name"),
                "credential_values": opener.opened(mapping_in(row.get("credential_values"))),
            }
            for row in theirs["credentials"]
        ]
    for row in theirs["config"]:
        name, value = str(row.get("param_name")), json_in(row.get("param_value"))
        if name in _SECTIONS and isinstance(value, dict):
            values[name] = opener.opened(value) if name == "environment_variables" else value
    if opener.failed:
        account.note(FILE, 0, "sealed values", "not possible", f"{opener.failed} of them are {opener.why}")
    if not values:
        return []
    # As text, so that numbers are read as those of the file are.
    return [msgspec.structs.replace(parse_document(_as_yaml(values), FILE, foreign=True), lines={})]


def _as_yaml(values: Any) -> str:
    """Return JSON that is YAML, too, which has neither pairs of surrogates nor every character unescaped."""
    return _ESCAPED.sub(_escape, json.dumps(values, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    # Half of a pair is no character, in YAML or anywhere else.
    is_half = "\ud800" <= found[0] <= "\udfff"
    return "\ufffd" if is_half else f"\\U{ord(found[0]):08x}"


def _public_name(row: Row) -> str:
    """Return the name that callers send: a team's own model has another one within LiteLLM."""
    return str(mapping_in(row.get("model_info")).get("team_public_model_name") or row.get("model_name") or "")


def _model(row: Row, opener: "_Opener", account: Account, *, is_free: bool) -> dict[str, Any] | None:
    """Return a row as an entry of the file; None for one that is left out. `is_free`: no other row has its public name."""
    name = str(row.get("model_name") or "")
    if (public := _public_name(row)) != name:
        if is_free:
            words = "a team's own model; here other teams whose models are all may use it, too"
            account.note(FILE, 0, f"model {public}", "changed", words)
            name = public
        else:
            words = (
                "a team's own model of a name that others have: call it by this one, or give it a name of its own there"
            )
            account.note(FILE, 0, f"model {name}", "not possible", words)
    if row.get("blocked"):
        account.note(FILE, 0, f"model {name}", "not needed", "it is blocked")
        return None
    before = opener.failed
    opened = opener.opened(mapping_in(row.get("litellm_params")))
    if opener.failed != before and "model" not in opened:
        account.note(FILE, 0, f"model {name}", "not possible", f"left out: {opener.why}")
        return None
    return {"model_name": name, "litellm_params": opened, "model_info": dict(mapping_in(row.get("model_info")))}


class _Opener:
    """Opens what LiteLLM sealed; what it cannot open is left out and counted."""

    def __init__(self, salt_key: str | None) -> None:
        self._salt_key = salt_key
        self.failed = 0
        self.why = _UNOPENED

    def opened(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with every sealed text opened. LiteLLM seals each text of a model's parameters."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            opened = self._one(value)
            if opened is not None or value is None:
                found[name] = opened
        return found

    def _one(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return open_sealed(value, self._salt_key) if self._salt_key else self._unsealed(value)
        except NotOpened as failure:
            return self._unsealed(value, _NO_PYNACL if isinstance(failure, NeedsPyNaCl) else _UNOPENED)

    def _unsealed(self, value: str, why: str = _UNOPENED) -> str | None:
        """Return a text that does not look sealed; None, counted, for one that does."""
        if (len(value) >= _SEALED_CHARS and not any(char in value for char in " /.:")) or value.startswith("v2:gcm:"):
            self.failed += 1
            self.why = why
            return None
        return value


_SEALED_CHARS: Final = 56
"""What the shortest sealed value has in base64: a nonce, a tag and nothing."""


def mapping_in(value: Any) -> Mapping[str, Any]:
    """Return a JSON column's mapping; empty for anything else."""
    found = json_in(value)
    return found if isinstance(found, dict) else {}


def json_in(value: Any) -> Any:
    """Return a JSON column's value, which a driver gives as text or as it is; None for what is no JSON, or nested
    too deep for any that LiteLLM writes.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
