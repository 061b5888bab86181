"""Selects with more choices than anybody reads through are searched."""

import json
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from accounts.store import DEFAULT_ORGANISATION
from cost.tables import COARSER_DAYS, rollup_day, rollup_hour
from dashboards.ui.options import MOST_FOUND, MOST_LISTED, Offers
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.running_gateway import PEPPER, model, running_gateway
from tests.signed_in import signed_in

MANY = [("", "All keys"), *((f"key_{place}", f"Service {place}") for place in range(MOST_LISTED * 2))]


def test_few_are_listed_and_many_are_searched() -> None:
    """By text or value, in either case; an empty field is the first choice."""
    offers = Offers()
    assert offers.search("few", MANY[:MOST_LISTED], "") is None
    assert offers.matching("few", "service") is None
    found = offers.search("key", MANY, "key_7")
    assert found is not None
    assert (found.value, found.text, found.otherwise) == ("key_7", "Service 7", "All keys")
    gone = offers.search("key", MANY, "key_gone")
    assert gone is not None
    assert (gone.value, gone.text) == ("", "")
    assert offers.matching("key", " SERVICE 42 ") == [("key_42", "Service 42")]
    assert offers.matching("key", "KEY_42") == [("key_42", "Service 42")]
    assert len(offers.matching("key", "service") or ()) == MOST_FOUND
    assert offers.matching("key", "nothing") == []


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/dashboard/finance/showback?options=team&typed=team_A", ["Team A"]),
        ("/dashboard/finance/spend?options=team&typed=team_a", ["Team A"]),
        ("/dashboard/finance?options=team&typed=nobody", []),
        ("/dashboard/teams/team_a/budgets?options=limit_of&typed=key", ["Key tests"]),
        ("/dashboard/teams/team_a/budgets?options=budget_of&typed=provider", ["One provider"]),
    ],
)
async def test_choices_are_read_without_the_page(tmp_path: Path, path: str, found: list[str]) -> None:
    """No book is looked at for them, and they are nobody's but those who may open the page."""
    scripted = [model("m", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with (
        running_gateway(tmp_path, scripted) as running,
        signed_in(running, "ada@example.com", role="admin") as ada,
    ):
        async with running.engine.begin() as connection:
            for table in (rollup_hour.name, rollup_day.name, *(each.name for each in COARSER_DAYS), "spend_day"):
                await connection.execute(text(f"ALTER TABLE {table} RENAME TO {table}_away"))
        assert (await ada.get(path.partition("?")[0])).status == 503
        reply = await ada.get(path)
        assert [told.partition(" (")[0] for _, told in json.loads(reply.text)] == found
        async with signed_in(running, "milo@example.com", teams={}) as other:
            assert (await other.get(path)).status in {403, 404}


async def test_a_page_with_thousands_of_keys_sends_none_of_them(tmp_path: Path) -> None:
    """Its fields ask for those that match what is typed, with the rights of the page itself."""
    scripted = [model("m", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with (
        running_gateway(tmp_path, scripted) as running,
        signed_in(running, "ada@example.com", role="admin") as ada,
    ):
        environment = Environment(data_dir=tmp_path, pepper=SecretStr(PEPPER))
        pepper = peppers(load(running.config_path, environment), environment)[0]
        for place in range(MOST_LISTED + 1):
            await running.accounts.create_key("team_a", f"Service {place}", pepper)
        oldest = (await running.accounts.keys_of(DEFAULT_ORGANISATION, "team_a"))[0].key_id
        form = {"budget_of": f"key:{oldest}", "limit_usd": "many"}
        again = (await ada.post("/dashboard/teams/team_a/budgets", form)).text
        # The oldest of more than are read for the form: it stays chosen where the form comes again.
        assert f'value="key:{oldest}"' in again
        assert "Key tests (" in again
        page = (await ada.get("/dashboard/teams/team_a/requests")).text
        assert 'data-search="key"' in page
        assert "Service 42" not in page
        reply = await ada.get("/dashboard/teams/team_a/requests?options=key&typed=service%2042")
        assert reply.headers["content-type"] == "application/json"
        assert [told for _, told in json.loads(reply.text)] == ["Service 42"]
        async with signed_in(running, "milo@example.com", teams={}) as other:
            refused = await other.get("/dashboard/teams/team_a/requests?options=key&typed=service")
            assert refused.status in {403, 404}
