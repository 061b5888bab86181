"""A database as LiteLLM has it: the tables that an import reads, with the columns of the newest schema that matter, and rows by name."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import asyncpg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_BOUNDS: Final = """
    max_budget DOUBLE PRECISION, soft_budget DOUBLE PRECISION, max_parallel_requests INTEGER, tpm_limit BIGINT, rpm_limit BIGINT,
    budget_duration TEXT, budget_reset_at TIMESTAMP(3)
"""
_DAY: Final = """
    id TEXT PRIMARY KEY DEFAULT gen_random_uuid()::text, date TEXT NOT NULL, api_key TEXT NOT NULL, model TEXT, model_group TEXT,
    custom_llm_provider TEXT, prompt_tokens BIGINT NOT NULL DEFAULT 0, completion_tokens BIGINT NOT NULL DEFAULT 0,
    spend DOUBLE PRECISION NOT NULL DEFAULT 0, api_requests BIGINT NOT NULL DEFAULT 0
"""
TABLES: Final = f"""
CREATE TABLE "LiteLLM_BudgetTable" (budget_id TEXT PRIMARY KEY, {_BOUNDS}, model_max_budget JSONB, created_by TEXT);
CREATE TABLE "LiteLLM_OrganizationTable" (
    organization_id TEXT PRIMARY KEY, organization_alias TEXT NOT NULL, budget_id TEXT, metadata JSONB DEFAULT '{{}}', models TEXT[],
    spend DOUBLE PRECISION DEFAULT 0);
CREATE TABLE "LiteLLM_OrganizationMembership" (user_id TEXT, organization_id TEXT, user_role TEXT, PRIMARY KEY (user_id, organization_id));
CREATE TABLE "LiteLLM_TeamTable" (
    team_id TEXT PRIMARY KEY, team_alias TEXT, organization_id TEXT, members_with_roles JSONB DEFAULT '{{}}', metadata JSONB DEFAULT '{{}}',
    {_BOUNDS}, spend DOUBLE PRECISION DEFAULT 0, models TEXT[] DEFAULT '{{}}', blocked BOOLEAN DEFAULT false,
    model_max_budget JSONB DEFAULT '{{}}', policies TEXT[] DEFAULT '{{}}', access_group_ids TEXT[] DEFAULT '{{}}', model_id INTEGER);
CREATE TABLE "LiteLLM_AccessGroupTable" (access_group_id TEXT PRIMARY KEY, access_group_name TEXT, access_model_names TEXT[] DEFAULT '{{}}');
CREATE TABLE "LiteLLM_UserTable" (
    user_id TEXT PRIMARY KEY, user_alias TEXT, user_email TEXT, user_role TEXT, organization_id TEXT, teams TEXT[] DEFAULT '{{}}', {_BOUNDS},
    spend DOUBLE PRECISION DEFAULT 0, models TEXT[] DEFAULT '{{}}', metadata JSONB DEFAULT '{{}}', password TEXT);
CREATE TABLE "LiteLLM_VerificationToken" (
    token TEXT PRIMARY KEY, key_name TEXT, key_alias TEXT, spend DOUBLE PRECISION DEFAULT 0, expires TIMESTAMP(3), models TEXT[] DEFAULT '{{}}',
    aliases JSONB DEFAULT '{{}}', user_id TEXT, team_id TEXT, permissions JSONB DEFAULT '{{}}', metadata JSONB DEFAULT '{{}}', blocked BOOLEAN,
    {_BOUNDS}, model_max_budget JSONB DEFAULT '{{}}', budget_id TEXT, organization_id TEXT);
CREATE TABLE "LiteLLM_EndUserTable" (user_id TEXT PRIMARY KEY, spend DOUBLE PRECISION DEFAULT 0, budget_id TEXT, blocked BOOLEAN DEFAULT false);
CREATE TABLE "LiteLLM_TagTable" (tag_name TEXT PRIMARY KEY, budget_id TEXT);
CREATE TABLE "LiteLLM_ProxyModelTable" (
    model_id TEXT PRIMARY KEY DEFAULT gen_random_uuid()::text, model_name TEXT, litellm_params JSONB, model_info JSONB, blocked BOOLEAN DEFAULT false);
CREATE TABLE "LiteLLM_Config" (param_name TEXT PRIMARY KEY, param_value JSONB);
CREATE TABLE "LiteLLM_DailyTeamSpend" (team_id TEXT, {_DAY});
CREATE TABLE "LiteLLM_DailyUserSpend" (user_id TEXT, {_DAY});
CREATE TABLE "LiteLLM_DailyEndUserSpend" (end_user_id TEXT, {_DAY});
"""
SALT_KEY: Final = "sk-salt-1234"


def sealed(value: str, salt_key: str = SALT_KEY) -> str:
    """A value as LiteLLM's newer way seals it."""
    nonce = os.urandom(12)
    box = AESGCM(hashlib.sha256(salt_key.encode()).digest())
    return "v2:gcm:" + base64.urlsafe_b64encode(nonce + box.encrypt(nonce, value.encode(), None)).decode()


def token(key: str) -> str:
    """What LiteLLM stores of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


class LitellmDatabase:
    """Such a database, to be filled."""

    def __init__(self, url: str, connection: asyncpg.Connection) -> None:
        self.url = url
        self._connection = connection

    async def add(self, table: str, **row: Any) -> None:
        """Add a row; the name is that of the table without its beginning."""
        names = ", ".join(row)
        places = ", ".join(f"${place}" for place in range(1, len(row) + 1))
        values = [json.dumps(value) if isinstance(value, dict) or _is_json(value) else value for value in row.values()]
        await self._connection.execute(f'INSERT INTO "LiteLLM_{table}" ({names}) VALUES ({places})', *values)  # noqa: S608

    async def key(self, key: str, **row: Any) -> str:
        """Add a key, and return what LiteLLM stores of it."""
        await self.add("VerificationToken", token=token(key), key_name=f"sk-...{key[-4:]}", **row)
        return token(key)

    async def model(self, name: str, params: Mapping[str, Any], info: Mapping[str, Any] | None = None) -> None:
        """Add a model whose every text is sealed, as LiteLLM seals them."""
        found = {name: sealed(value) if isinstance(value, str) else value for name, value in params.items()}
        await self.add("ProxyModelTable", model_name=name, litellm_params=found, model_info=dict(info or {}))

    async def spent(self, day: datetime, key: str, spend: float, *, team: str | None = None, **row: Any) -> None:
        """Add a day's spending of a key, as LiteLLM rolls it up: by user, and by team where there is one."""
        values = {
            "date": f"{day:%Y-%m-%d}",
            "api_key": token(key),
            "spend": spend,
            "model_group": "gpt-4o",
            "custom_llm_provider": "openai",
        }
        await self.add("DailyUserSpend", **(values | row))
        if team is not None:
            await self.add("DailyTeamSpend", team_id=team, **(values | row))

    async def execute(self, statement: str) -> None:
        """Run any statement."""
        await self._connection.execute(statement)


def _is_json(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
