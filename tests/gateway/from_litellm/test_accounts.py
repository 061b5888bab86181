"""LiteLLM's accounts in our database: what comes along, what is told, and that twice is once."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.log import AuditLog, Scope
from accounts.directory import Directory
from accounts.errors import KeyBlocked, UnknownKey
from accounts.keys import Pepper
from accounts.people.people import PeopleStore
from accounts.store import AccountStore
from api.litellm.fields import FieldStore
from cost.budgets.budget import BudgetStatus
from cost.budgets.store import BudgetStore
from cost.ledger.verify import check
from cost.times import wall_us
from gateway.configuration.file import ConfigError
from gateway.from_litellm.configuration import translate
from gateway.from_litellm.models import Models
from gateway.from_litellm.secrets import Secrets
from gateway.from_litellm.source import Source, Variables, add_documents
from gateway.from_litellm.tables import documents_of, read_theirs
from gateway.from_litellm.told import Account
from gateway.from_litellm.whole import import_accounts
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.store import LimitStore
from tests.gateway.from_litellm.litellm_database import SALT_KEY, LitellmDatabase, token

PEPPER = Pepper(id="new", secret=b"n" * 32)
NOW = datetime.now(UTC)
THIS_MONTH = NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
NEXT_MONTH = (THIS_MONTH + timedelta(days=32)).replace(day=1).replace(tzinfo=None)
MODELS = Models(
    names={"gpt-4o": ["gpt-4o"], "smart": ["smart--1", "smart--2"], "mini": ["mini"]},
    aliases={"smart": ["smart--1", "smart--2"], "old": "mini"},
    groups={"beta": ["smart", "mini"]},
)


async def imported(litellm: LitellmDatabase, engine: AsyncEngine, *, dry_run: bool = False) -> Account:
    """Run an import of the accounts, and return what was told."""
    account = Account()
    since = date(NOW.year, 1, 1)
    theirs = await read_theirs(litellm.url, since)
    await import_accounts(engine, [PEPPER], theirs, MODELS, account, since=since, now=NOW, dry_run=dry_run)
    return account


async def everything(engine: AsyncEngine) -> dict[str, int]:
    """The number of rows of every table that an import writes."""
    tables = (
        "organisation",
        "team",
        "api_key",
        "person",
        "team_member",
        "budget",
        "limit_rule",
        "ledger_entry",
        "audit_entry",
        "litellm_fields",
    )
    async with engine.connect() as connection:
        return {name: int(await connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0) for name in tables}  # noqa: S608


def told(account: Account, what: str) -> list[str]:
    """What became of a thing."""
    return [f"{each.outcome}: {each.words}" for each in account.told if each.place == what]


async def budget_of(
    engine: AsyncEngine, scope: Any, scope_id: str, organisation_id: str = "default"
) -> list[BudgetStatus]:
    """The budgets of one scope."""
    return await BudgetStore(engine).of_scope(organisation_id, scope, scope_id)


async def test_a_team_comes_with_its_keys(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """Names, models, ends, blocks and what clients wrote of them; the old keys open the door."""
    await litellm.add(
        "TeamTable", team_id="8061d474-08aa-4319-be33-4d17858e8ece", team_alias="Payments", models=["smart", "gpt-4o"]
    )
    await litellm.key(
        "sk-first-0123456789",
        team_id="8061d474-08aa-4319-be33-4d17858e8ece",
        key_alias="app",
        models=["beta"],
        metadata={"cost_centre": "42"},
    )
    await litellm.key("sk-blocked-012345678", team_id="8061d474-08aa-4319-be33-4d17858e8ece", blocked=True)
    ends = (NOW + timedelta(days=3)).replace(tzinfo=None, microsecond=0)
    await litellm.key(
        "sk-ends-0123456789", team_id="8061d474-08aa-4319-be33-4d17858e8ece", expires=ends, key_alias="ends"
    )
    await litellm.key(
        "sk-gone-0123456789", team_id="8061d474-08aa-4319-be33-4d17858e8ece", expires=ends - timedelta(days=9)
    )
    account = await imported(litellm, engine)
    accounts = AccountStore(engine)
    team = await accounts.get_team("8061d474-08aa-4319-be33-4d17858e8ece")
    assert (team.name, team.allowed_models) == ("Payments", frozenset({"smart--1", "smart--2", "gpt-4o"}))
    directory = Directory(accounts, [PEPPER], imported_keys=True)
    caller = await directory.authenticate("sk-first-0123456789")
    assert (caller.key_name, caller.allowed_models) == ("app", frozenset({"smart--1", "smart--2"}))
    assert await FieldStore(engine).of("key", "default", [caller.key_id]) == {
        caller.key_id: {"key_alias": "app", "metadata": {"cost_centre": "42"}}
    }
    with pytest.raises(KeyBlocked):
        await directory.authenticate("sk-blocked-012345678")
    with pytest.raises(UnknownKey):
        await directory.authenticate("sk-gone-0123456789")
    keys = {key.name: key for key in await accounts.list_keys()}
    assert keys["ends"].expires_at == ends.replace(tzinfo=UTC)
    assert told(account, "keys that have expired") == ["not needed: 1"]


async def test_limits_and_budgets_come_along(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """Rates of teams, keys and of one model of either; budgets with their time, those of a tier, and those that warn."""
    await litellm.add("BudgetTable", budget_id="tier", max_budget=5.0, budget_duration="7d", rpm_limit=10)
    await litellm.add(
        "TeamTable",
        team_id="search",
        rpm_limit=600,
        tpm_limit=90_000,
        max_parallel_requests=8,
        max_budget=100.0,
        soft_budget=80.0,
        budget_duration="30d",
        metadata={"model_rpm_limit": {"gpt-4o": 60}},
        model_max_budget={"gpt-4o": {"budget_limit": 20, "time_period": "1d"}},
    )
    await litellm.key("sk-tier-0123456789", team_id="search", budget_id="tier")
    await litellm.key("sk-odd-01234567890", team_id="search", max_budget=90.0, budget_duration="90d")
    account = await imported(litellm, engine)
    rules = {str(each.place): each.limits for each in await LimitStore(engine).all()}
    assert rules["team search"] == Limits(requests_per_minute=600, tokens_per_minute=90_000, concurrency=8)
    assert rules["team search on model gpt-4o"] == Limits(requests_per_minute=60)
    assert sorted(
        (each.budget.period, each.budget.kind, each.budget.limit_nanousd // 10**9)
        for each in await budget_of(engine, "team", "search")
    ) == [
        ("month", "hard", 100),
        ("month", "soft", 80),
    ]
    (own,) = await budget_of(engine, "team_model", "search/gpt-4o")
    assert (own.budget.period, own.budget.limit_nanousd) == ("day", 20 * 10**9)
    keys = {key.last4: key.key_id for key in await AccountStore(engine).list_keys()}
    (tier,) = await budget_of(engine, "key", keys["6789"])
    assert (tier.budget.period, tier.budget.limit_nanousd) == ("week", 5 * 10**9)
    assert rules[f"key {keys['6789']}"].requests_per_minute == 10
    (odd,) = await budget_of(engine, "key", keys["7890"])
    assert (odd.budget.period, odd.budget.limit_nanousd) == ("month", 30 * 10**9)
    assert any(
        "90d is a month here" in words for words in told(account, f"key key 7890 ({token('sk-odd-01234567890')[:8]})")
    )


async def test_budgets_run_on(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """A key's and a team's budget stand where LiteLLM had them, whatever of it its days tell; the ledger's sums agree."""
    await litellm.add(
        "TeamTable", team_id="search", max_budget=100.0, budget_duration="30d", spend=41.5, budget_reset_at=NEXT_MONTH
    )
    await litellm.key(
        "sk-one-0123456789",
        team_id="search",
        max_budget=20.0,
        budget_duration="30d",
        spend=12.25,
        budget_reset_at=NEXT_MONTH,
    )
    await litellm.key("sk-two-0123456789", team_id="search", max_budget=9.0, spend=7.0)
    await litellm.spent(THIS_MONTH, "sk-one-0123456789", 10.0, team="search", prompt_tokens=1_000, completion_tokens=50)
    await litellm.spent(THIS_MONTH - timedelta(days=400), "sk-two-0123456789", 3.0, team="search")
    await imported(litellm, engine)
    by_name = {
        each.budget.period: each
        for key in await AccountStore(engine).list_keys()
        for each in await budget_of(engine, "key", key.key_id)
    }
    assert by_name["month"].spent_nanousd == 12_250_000_000
    assert by_name["lifetime"].spent_nanousd == 7_000_000_000
    (team,) = await budget_of(engine, "team", "search")
    assert team.spent_nanousd == 41_500_000_000
    found = await check(engine, 0, 2**62, now_us=wall_us())
    assert not found.differences


async def test_a_budget_whose_time_is_over_begins_anew(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """What LiteLLM has not reset yet, though its time is over, is not carried into the new one (LiteLLM 8364, 34492)."""
    past = (NOW - timedelta(hours=1)).replace(tzinfo=None)
    await litellm.add(
        "TeamTable", team_id="late", max_budget=10.0, budget_duration="30d", spend=99.0, budget_reset_at=past
    )
    await imported(litellm, engine)
    (team,) = await budget_of(engine, "team", "late")
    assert team.spent_nanousd == 0


async def test_twice_changes_nothing(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """A second import of the same writes no row, not even of the audit log; of what has come since, that alone."""
    await litellm.add("OrganizationTable", organization_id="org-1", organization_alias="Acme", models=["gpt-4o"])
    await litellm.add("TeamTable", team_id="a", organization_id="org-1", max_budget=50.0, spend=5.0, rpm_limit=5)
    await litellm.add("UserTable", user_id="u", user_email="ada@example.com", user_role="proxy_admin")
    await litellm.key("sk-one-0123456789", team_id="a", max_budget=5.0, spend=1.0, rpm_limit=2, metadata={"a": 1})
    await litellm.spent(NOW, "sk-one-0123456789", 0.5, team="a")
    await imported(litellm, engine)
    before = await everything(engine)
    assert before["ledger_entry"] > 0
    await imported(litellm, engine)
    assert await everything(engine) == before
    await litellm.execute('UPDATE "LiteLLM_DailyTeamSpend" SET spend = spend + 0.25')
    await litellm.key("sk-later-0123456789", team_id="a")
    await litellm.execute('UPDATE "LiteLLM_VerificationToken" SET blocked = true WHERE max_budget IS NOT NULL')
    await imported(litellm, engine)
    after = await everything(engine)
    assert after["api_key"] == before["api_key"] + 1
    directory = Directory(AccountStore(engine), [PEPPER], imported_keys=True)
    with pytest.raises(KeyBlocked):
        await directory.authenticate("sk-one-0123456789")
    (team,) = await budget_of(engine, "team", "a", "org-1")
    assert team.spent_nanousd == 5_000_000_000


async def test_what_was_changed_here_stays(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """A budget, limit or name that somebody has set here since is not written over."""
    await litellm.add("TeamTable", team_id="a", team_alias="Theirs", max_budget=50.0, rpm_limit=5)
    await imported(litellm, engine)
    accounts = AccountStore(engine)
    await accounts.update_team("a", name="Ours")
    (team,) = await budget_of(engine, "team", "a")
    store = BudgetStore(engine)
    from msgspec.structs import replace

    await store.put(replace(team.budget, limit_nanousd=7))
    await imported(litellm, engine)
    assert (await accounts.get_team("a")).name == "Ours"
    assert (await budget_of(engine, "team", "a"))[0].budget.limit_nanousd == 7


async def test_a_dry_run_writes_nothing(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """The same words as the import itself, and not a row."""
    await litellm.add("OrganizationTable", organization_id="org-1", organization_alias="Acme")
    await litellm.add("UserTable", user_id="u", user_email="ada@example.com")
    members = [{"role": "user", "user_id": "u"}]
    await litellm.add(
        "TeamTable", team_id="a", organization_id="org-1", max_budget=50.0, spend=5.0, members_with_roles=members
    )
    await litellm.key("sk-one-0123456789", team_id="a", aliases={"gpt-4": "gpt-4o"})
    await litellm.spent(NOW, "sk-one-0123456789", 0.5, team="a")
    empty = await everything(engine)
    tried = await imported(litellm, engine, dry_run=True)
    assert await everything(engine) == empty
    done = await imported(litellm, engine)
    assert [(each.place, each.outcome, each.words) for each in tried.told] == [
        (each.place, each.outcome, each.words) for each in done.told
    ]


async def test_users_are_people_and_have_teams_of_their_own(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """Users with an address are invited with their role; keys without a team have their user's budget by a team of one."""
    await litellm.add(
        "UserTable",
        user_id="ada",
        user_email="Ada@Example.com",
        user_role="proxy_admin_viewer",
        max_budget=3.0,
        budget_duration="1d",
    )
    await litellm.add("UserTable", user_id="bot")
    await litellm.add(
        "TeamTable",
        team_id="a",
        members_with_roles=[
            {"role": "admin", "user_id": "ada"},
            {"role": "user", "user_id": "nobody", "user_email": "gone@example.com"},
        ],
    )
    await litellm.key("sk-hers-0123456789", user_id="ada")
    await litellm.key("sk-nobodys-0123456", user_id=None)
    account = await imported(litellm, engine)
    people = PeopleStore(engine)
    ada = await people.find("ada@example.com")
    assert ada is not None
    assert (ada.role, ada.has_password) == ("finance", False)
    assert (await people.teams_of([ada.person_id]))[ada.person_id] == {"a": "admin", "user-ada": "admin"}
    directory = Directory(AccountStore(engine), [PEPPER], imported_keys=True)
    assert (await directory.authenticate("sk-hers-0123456789")).team_id == "user-ada"
    assert (await directory.authenticate("sk-nobodys-0123456")).team_id == "litellm-keys"
    assert (await budget_of(engine, "team", "user-ada"))[0].budget.period == "day"
    assert any("gone@example.com" in words for words in told(account, "team a"))
    assert any("no mail address" in words for words in told(account, "users"))


async def test_end_users_have_their_budget_where_they_were_seen(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """An end user's budget is set in the team that spent for them, and stands where it stood; the team's own sum stays."""
    await litellm.add("BudgetTable", budget_id="small", max_budget=2.0, budget_duration="30d")
    await litellm.add("EndUserTable", user_id="customer-1", spend=0.75, budget_id="small")
    await litellm.add("EndUserTable", user_id="never-seen", budget_id="small")
    await litellm.add(
        "TeamTable", team_id="shop", max_budget=10.0, budget_duration="30d", spend=1.0, budget_reset_at=NEXT_MONTH
    )
    await litellm.key("sk-shop-0123456789", team_id="shop")
    await litellm.spent(THIS_MONTH, "sk-shop-0123456789", 1.0, team="shop")
    await litellm.add(
        "DailyEndUserSpend",
        end_user_id="customer-1",
        date=f"{THIS_MONTH:%Y-%m-%d}",
        api_key=token("sk-shop-0123456789"),
        spend=0.5,
        model_group="gpt-4o",
        custom_llm_provider="openai",
    )
    account = await imported(litellm, engine)
    (customer,) = await budget_of(engine, "end_user", "shop/customer-1")
    assert (customer.budget.limit_nanousd, customer.spent_nanousd) == (2 * 10**9, 750_000_000)
    (team,) = await budget_of(engine, "team", "shop")
    assert team.spent_nanousd == 10**9
    assert told(account, "end user never-seen")[0].startswith("not possible")


async def test_an_organisation_has_its_budget_and_limits(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """What LiteLLM keeps in a tier of its own; its teams may use its models where they name none."""
    await litellm.add("BudgetTable", budget_id="big", max_budget=500.0, budget_duration="30d", tpm_limit=9_000)
    await litellm.add(
        "OrganizationTable", organization_id="org-1", organization_alias="Acme", budget_id="big", models=["mini"]
    )
    await litellm.add("TeamTable", team_id="a", organization_id="org-1")
    await imported(litellm, engine)
    (budget,) = await budget_of(engine, "organisation", "org-1", "org-1")
    assert (budget.budget.period, budget.limit_nanousd) == ("month", 500 * 10**9)
    assert [str(each.place) for each in await LimitStore(engine).all()] == ["organisation org-1"]
    assert (await AccountStore(engine).get_team("a")).allowed_models == frozenset({"mini"})


async def test_what_has_no_place_here_is_told(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """Tables that are not imported, budgets of members and of users without keys are counted, not passed over."""
    await litellm.execute(
        'CREATE TABLE "LiteLLM_ProjectTable" (project_id TEXT); INSERT INTO "LiteLLM_ProjectTable" VALUES (1), (2)'
    )
    await litellm.execute('CREATE TABLE "LiteLLM_TeamMembership" (user_id TEXT, team_id TEXT, budget_id TEXT)')
    await litellm.execute("""INSERT INTO "LiteLLM_TeamMembership" VALUES ('u', 'a', 'b')""")
    await litellm.add("UserTable", user_id="u", user_email="u@example.com", max_budget=3.0)
    account = await imported(litellm, engine)
    assert told(account, "2 projects")[0].startswith("not possible")
    assert told(account, "1 members' budgets")[0].startswith("not possible")
    assert told(account, "user u")[0].startswith("not needed")


async def test_everything_is_audited(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """Each object has its entry, by the import, in its organisation's log, and the chain is whole."""
    await litellm.add("OrganizationTable", organization_id="org-1", organization_alias="Acme")
    await litellm.add("TeamTable", team_id="a", organization_id="org-1", rpm_limit=5, max_budget=1.0)
    await litellm.key("sk-one-0123456789", team_id="a")
    await imported(litellm, engine)
    log = AuditLog(engine)
    entries = await log.page(Scope(organisation_id="org-1"))
    assert {each.object_kind for each in entries} == {"organisation", "team", "key", "limit", "budget"}
    assert {each.actor_id for each in entries} == {"litellm-import"}
    assert (await log.verify()).sound
    assert all(token("sk-one-0123456789") not in f"{each.before}{each.after}" for each in entries)


async def test_odd_rows_cost_only_themselves(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """Ids that ours cannot be, names that look like keys, tokens that are none, sessions of pages: each told, the rest imported."""
    await litellm.add("TeamTable", team_id="Team Ünlaut / 1", team_alias="sk-looks-like-a-key-0123456789")
    await litellm.key("sk-one-0123456789", team_id="Team Ünlaut / 1", key_alias="sk-one-0123456789")
    await litellm.add("VerificationToken", token="sk-plain-not-hashed", team_id="Team Ünlaut / 1")
    await litellm.key("sk-12345678", team_id="Team Ünlaut / 1")
    await litellm.key("sk-page-0123456789", team_id="litellm-dashboard")
    await litellm.key("sk-lost-0123456789", team_id="a-team-that-is-gone")
    account = await imported(litellm, engine)
    caller = await Directory(AccountStore(engine), [PEPPER], imported_keys=True).authenticate("sk-one-0123456789")
    assert caller.team_id.startswith("team-nlaut-1-")
    assert "sk-one" not in caller.key_name
    assert told(account, "sessions of LiteLLM's pages") == ["not needed: 1"]
    assert any("no SHA-256" in each.words for each in account.told)
    assert any("tutorials" in each.words for each in account.told)
    assert len(await AccountStore(engine).list_keys("litellm-keys")) == 1
    assert all("sk-looks-like-a-key" not in f"{each.place}{each.words}" for each in account.told)


async def test_models_of_the_database_are_opened(litellm: LitellmDatabase) -> None:
    """Models that LiteLLM keeps in its database are read with its salt key, with settings and variables; without it they are told."""
    await litellm.model(
        "db-model",
        {"model": "openai/gpt-4o", "api_key": "sk-proj-abcdefghijklmnop", "rpm": 5},
        {"mode": "chat", "db_model": True},
    )
    await litellm.model(
        "db-azure",
        {
            "model": "azure/gpt",
            "api_base": "https://contoso.openai.azure.com",
            "api_key": "0123456789abcdef" * 2,
            "api_version": "2024-10-21",
        },
    )
    await litellm.model("db-reference", {"model": "openai/gpt-4o", "api_key": "os.environ/OPENAI_API_KEY"})
    await litellm.add("Config", param_name="router_settings", param_value={"num_retries": 4})
    theirs = await read_theirs(litellm.url, date(2026, 1, 1))
    for key, models in (
        (SALT_KEY, ["db-azure", "db-model", "db-reference"]),
        (None, ["openai/*"]),
        ("wrong", ["openai/*"]),
    ):
        account, variables, source = Account(), Variables({}), Source([])
        add_documents(source, documents_of(theirs, key, account), variables)
        secrets = Secrets(account, variables)
        written = translate(source, account, secrets, variables).written
        assert sorted(each["model_id"] for each in written["providers"]["models"]) == models
        assert written["providers"]["retry"] == {"attempts": 5}
        if key == SALT_KEY:
            assert "sk-proj-abcdefghijklmnop" in secrets.moved.values()
            by_name = {each["model_id"]: each for each in written["providers"]["models"]}
            # A reference stays one also where LiteLLM sealed it (LiteLLM 31041), and no literal takes its variable.
            assert by_name["db-reference"]["api_key"] == "env:OPENAI_API_KEY"
            assert by_name["db-model"]["api_key"] != "env:OPENAI_API_KEY"
        else:
            assert any("LITELLM_SALT_KEY" in each.words for each in account.told)
        assert all("abcdefghijklmnop" not in each.words for each in account.told)


async def test_an_older_schema_is_read_too(litellm: LitellmDatabase, engine: AsyncEngine) -> None:
    """Tables and columns that a version does not have are nothing; a database without keys is none of LiteLLM's."""
    for table in (
        "DailyTeamSpend",
        "DailyUserSpend",
        "DailyEndUserSpend",
        "TagTable",
        "OrganizationMembership",
        "Config",
    ):
        await litellm.execute(f'DROP TABLE "LiteLLM_{table}"')
    await litellm.execute(
        'ALTER TABLE "LiteLLM_VerificationToken" DROP COLUMN budget_id, DROP COLUMN organization_id, DROP COLUMN soft_budget'
    )
    await litellm.add("TeamTable", team_id="a", max_budget=9.0, spend=3.0)
    await litellm.key("sk-one-0123456789", team_id="a")
    account = await imported(litellm, engine)
    (team,) = await budget_of(engine, "team", "a")
    assert team.spent_nanousd == 3 * 10**9
    assert told(account, "spending by day")[0].startswith("changed")
    await litellm.execute('DROP TABLE "LiteLLM_VerificationToken"')
    with pytest.raises(ConfigError, match="none of LiteLLM's"):
        await read_theirs(litellm.url, date(2026, 1, 1))


async def test_the_address_may_have_what_only_prisma_reads(litellm: LitellmDatabase) -> None:
    """LiteLLM's own DATABASE_URL is taken as it is; one of another kind is refused in a line."""
    await read_theirs(f"{litellm.url}?schema=public&connection_limit=10&pool_timeout=20", date(2026, 1, 1))
    with pytest.raises(ConfigError, match="PostgreSQL"):
        await read_theirs("sqlite:///x.sqlite", date(2026, 1, 1))


async def test_theirs_is_only_read(litellm: LitellmDatabase) -> None:
    """The database of LiteLLM cannot be written by an import, whatever it tried."""
    from gateway.from_litellm.tables import _snapshot

    async with _snapshot(litellm.url) as connection:
        with pytest.raises(Exception, match="read-only"):
            await connection.execute(text('DELETE FROM "LiteLLM_VerificationToken"'))
