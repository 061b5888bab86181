"""The pages of incidents: operators see all of each, a team its own share, and nobody what is not his."""

from pathlib import Path

from api.incidents.kept import Share
from cost.times import DAY_US, wall_us
from tests.api.incidents.seen import seen
from tests.dashboards.operations.test_overview_page import gateway_of
from tests.dashboards.pages.teams import running_teams
from tests.signed_in import signed_in

HOME = "/dashboard/operations"


async def test_an_incident_is_found_with_everybody_whom_it_hurt(tmp_path: Path) -> None:
    """Open and closed ones, on their list, on a page each, over the API's own figures, and a team's share on the team's page."""
    async with running_teams(tmp_path, accounts={"operator": "default"}) as running:
        gateway, now_us = gateway_of(running), wall_us()
        history = gateway.views.operations.history
        fjord = Share(organisation_id="fjord", team_id="fjord-lab", model="large", requests=7, refused=7)
        old = seen("target/large", kind="slow", severity="warn", targets=("large",), hurt=(fjord,))
        await history.note([old], "there", now_us - 3 * DAY_US)
        await history.note([seen(since_us=now_us - 60_000_000)], "there", now_us)
        (kept,) = history.open
        async with signed_in(running, role="operator") as browser:
            overview = (await browser.get(HOME)).text
            assert "All well" not in overview.partition("<h2>Models")[0]
            assert "138 requests of 2 teams: 130 refused, 8 delayed" in overview
            assert f'href="{HOME}/incidents/{kept.incident_id}"' in overview
            models = (await browser.get(f"{HOME}/targets?format=csv&table=targets")).text
            assert [line.split(",")[:2] for line in models.splitlines()[1:]] == [
                ["large", "All well"],
                ["small", "Down"],
            ]
            told = (await browser.get(f"{HOME}/incidents")).text
            assert told.index(">small<") < told.index(">large<")
            assert "Incidents that began on each day" in told
            one = (await browser.get(f"{HOME}/incidents/{kept.incident_id}")).text
            assert "Its provider refuses our key" in one
            assert "team_b" in one
            assert "fjord" not in one
            file = (await browser.get(f"{HOME}/incidents/{kept.incident_id}?format=csv&table=hurt")).text
            assert [line.split(",")[1:] for line in file.splitlines()[1:]] == [
                ["team_a", "small", "90", "90"],
                ["team_b", "auto", "48", "40"],
            ]
            assert (await browser.get(f"{HOME}/incidents/inc_none")).status == 404
        async with signed_in(running, "tess@example.com", teams={"team_b": "admin"}) as browser:
            assert (await browser.get(f"{HOME}/incidents")).status == 403
            mine = (await browser.get("/dashboard/teams/team_b/incidents?format=csv&table=incidents")).text
            (row,) = mine.splitlines()[1:]
            assert row.split(",")[0] == "auto"
            assert row.endswith(",48,40")
            page = (await browser.get("/dashboard/teams/team_b/incidents")).text
            assert "refuses our key" not in page
            assert (await browser.get("/dashboard/teams/team_a/incidents")).status in {403, 404}
            assert (await browser.get("/dashboard/teams/fjord-lab/incidents")).status in {403, 404}


async def test_an_organisation_sees_what_hurt_its_teams_and_no_cause(tmp_path: Path) -> None:
    """Its own teams and their requests; neither the place, nor the upstream's words, nor anybody of another organisation."""
    async with running_teams(tmp_path, accounts={"operator": "default"}) as running:
        history, now_us = gateway_of(running).views.operations.history, wall_us()
        both = tuple(
            Share(organisation_id=of, team_id=team, model="large", requests=requests, refused=3)
            for of, team, requests in (("fjord", "fjord-lab", 7), ("default", "team_a", 90))
        )
        await history.note(
            [seen("target/large", targets=("large",), hurt=both, since_us=now_us - 60_000_000)], "x", now_us
        )
        await history.note([seen(since_us=now_us - 60_000_000)], "there", now_us)
        async with signed_in(running, "lab@example.com", role="admin", organisation_id="fjord") as browser:
            (row,) = (await browser.get("/dashboard/incidents?format=csv&table=incidents")).text.splitlines()[1:]
            assert row.startswith("large,")
            assert ",7,3," in row
            page = (await browser.get("/dashboard/incidents")).text
            assert 'href="/dashboard/incidents"' in page
            for hidden in ("refuses our key", "team_a", ">97<", ">90<", "/operations/incidents/"):
                assert hidden not in page
        async with signed_in(running, "milo@example.com", teams={"team_a": "admin"}) as browser:
            assert (await browser.get("/dashboard/incidents")).status == 403
