"""What `weighbridge serve` says on a terminal: the address, the dashboard, and the command that comes next."""

import shlex
import sys
from pathlib import Path
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.people.links import own_address
from accounts.people.people import PeopleStore
from accounts.store import AccountStore
from gateway.configuration.gateway_config import GatewayConfig
from proxy.settle.observers.logs import LogForm

Missing = Literal["person", "team", "key", "nothing"]
"""What a gateway that was just set up lacks first."""


async def first_missing(engine: AsyncEngine) -> Missing:
    """Return what is to be made next, so that somebody can look at the dashboard and a program can call."""
    accounts = AccountStore(engine)
    if not await PeopleStore(engine).all(limit=1):
        return "person"
    if not await accounts.list_teams():
        return "team"
    return "nothing" if await accounts.keys_by_pepper() else "key"


def first_words(config: GatewayConfig, url: str, missing: Missing, option: Path | None) -> str:
    """Return the three lines. `option` is the `--config` that the next command has to be given, if any."""
    scheme, _, place = url.partition("://")
    host, _, port = place.rpartition(":")
    base = own_address(host.strip("[]"), int(port), scheme)
    dashboard = (config.sign_in.public_url or base).rstrip("/")
    suffix = "" if option is None else f" --config {shlex.quote(str(option))}"
    what, command = _NEXT[missing]
    return (
        f"  API        {base}/v1\n"
        f"  Dashboard  {dashboard}/dashboard\n"
        f"  Next       {command}{suffix}   (in another terminal: {what})"
    )


_NEXT: dict[Missing, tuple[str, str]] = {
    "person": ("prints your sign-in link", "weighbridge people invite you@example.com --role admin"),
    "team": ("a team, which keys belong to", "weighbridge teams create my-team"),
    "key": ("an API key, shown once", "weighbridge keys create TEAM"),
    "nothing": ("what is being served", "weighbridge top"),
}


def says_on_terminal(form: LogForm | None) -> bool:
    """Return True where a person reads the output, and nobody asked for JSON."""
    return form != "json" and sys.stdout.isatty()
