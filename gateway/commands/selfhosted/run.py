"""`weighbridge selfhosted run`: as many engine processes on this machine as the pool should have."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from gateway.configuration.gateway_config import GatewayConfig
    from selfhosted.config import LaunchConfig, PoolConfig, PoolPart, SharedGpusConfig
    from selfhosted.scale.processes import Actuator

_OURS: Final = re.compile(r"WEIGHBRIDGE_.*|DATABASE_URL|REDIS_URL|OTEL_.*")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_PREFIX: Final = 48


def run(
    pool: Annotated[
        str,
        typer.Argument(
            metavar="POOL",
            help="A pool's name, as in selfhosted.pools; or that of GPUs which pools share, for all of them.",
        ),
    ],
    *,
    gateway: Annotated[str, typer.Option(help="The gateway's address, such as http://127.0.0.1:8080.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration file; otherwise WEIGHBRIDGE_CONFIG.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=0, max=1_000, help="Run so many, whatever the gateway decides.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the engines' output goes; otherwise `engines/POOL` in the data folder.")
    ] = None,
    name: Annotated[str, typer.Option(help="How replicas' names begin; otherwise this machine's name.")] = "",
) -> None:
    """Start engines, register them, drain and end them, as the gateway decides. One such command for each pool, or for those that share
    GPUs, whose engines start one after the other and sleep until the gateway wakes them.

    SIGTERM or Ctrl-C drains and ends them all; a second one does not wait for their work.
    """
    import os

    from gateway.configuration.environment import read_environment
    from gateway.configuration.places import DATA
    from gateway.configuration.settings import load
    from selfhosted.config import PREFILL, PoolUnfit

    if not gateway.startswith(("http://", "https://")) or "@" in gateway:
        raise PoolUnfit("--gateway begins with http:// or https://, and has no user")
    environment = read_environment(config)
    settings = load(config, environment, secrets_from=None)
    group = next((each for each in settings.selfhosted.shared_gpus if each.name == pool), None)
    place = folder if folder is not None else environment.places.kept(DATA / "engines" / pool)
    prefix = _UNFIT.sub("-", name or socket.gethostname().partition(".")[0]).strip("-._")[:_LONGEST_PREFIX] or "engine"
    crews = []
    for each in (pool,) if group is None else group.pools:
        chosen, token_at = _pool(settings, each, alone=group is None)
        folder_of = place if group is None else place / each
        crews += [
            _Crew(
                pool=chosen,
                part=part,
                launch=part.launch,
                token=_secret(token_at, f"`registration.token` of `{each}`"),
                api_key=None if chosen.api_key is None else _secret(chosen.api_key, f"`api_key` of `{each}`"),
                folder=(folder_of / PREFILL if part.does == "reads" else folder_of).absolute(),
                seen=_seen_by_engines(os.environ, settings, chosen),
                prefix=_named(chosen, part, prefix),
                replicas=replicas,
            )
            for part in chosen.parts
            if part.launch is not None
        ]
    asyncio.run(_run(crews, gateway, group))


def _named(pool: "PoolConfig", part: "PoolPart", prefix: str) -> str:
    """Return the prefix of the names of a part's replicas: those that only read are known by their names."""
    from selfhosted.config import PoolUnfit

    reading = pool.prefill
    if reading is None:
        return prefix
    name = reading.replicas.replace("*", prefix) if part.does == "reads" else prefix
    if not pool.is_in(part, f"{name}-1"):
        raise PoolUnfit(
            f"`{name}-1` would be the name of a replica that {'reads' if part.does == 'reads' else 'answers'}, which does not go with "
            f"`prefill.replicas: {reading.replicas}` of `{pool.name}`: choose another --name, or a pattern that begins otherwise"
        )
    return name


class _Crew(NamedTuple):
    """A pool's engines on this machine, or those of one part of it."""

    pool: "PoolConfig"
    part: "PoolPart"
    launch: "LaunchConfig"
    token: str
    api_key: str | None
    folder: Path
    seen: Mapping[str, str]
    prefix: str
    replicas: int | None

    def key(self) -> str | None:
        """Return the engines' key."""
        return self.api_key


def _pool(settings: "GatewayConfig", name: str, *, alone: bool) -> "tuple[PoolConfig, str]":
    """Return the pool and the reference to its token, if the pool can be run on this machine. `alone`: without those
    that it shares GPUs with.
    """
    from selfhosted.config import PoolUnfit

    pools = {each.name: each for each in settings.selfhosted.pools}
    pool = pools.get(name)
    if pool is None:
        known = ", ".join(sorted(pools)) or "none"
        raise PoolUnfit(f"there is no pool `{name}`; the configuration has under `selfhosted.pools`: {known}")
    shared = settings.selfhosted.shared_by(name)
    if alone and shared is not None:
        raise PoolUnfit(f"`{name}` shares its GPUs with other pools, whose engines start in turns: run `{shared.name}`")
    if all(part.launch is None for part in pool.parts):
        raise PoolUnfit(f"`{name}` has no `launch`: its `command` says how an engine is started")
    if pool.registration is None:
        raise PoolUnfit(f"`{name}` has no `registration`: its `token` and `networks` let this command tell the gateway")
    return pool, pool.registration.token


def _secret(reference: str, whose: str) -> str:
    from gateway.configuration.environment import resolve_secret
    from selfhosted.config import PoolUnfit

    try:
        return resolve_secret(reference)
    except (LookupError, OSError):
        raise PoolUnfit(f"{whose} refers to {reference}, which is not set") from None


def _seen_by_engines(environ: Mapping[str, str], settings: "GatewayConfig", pool: "PoolConfig") -> dict[str, str]:
    """Return the environment of engine processes: they run code that came with a model, so their own key is the only
    secret they see.
    """
    from providers.secret_references import secrets_in

    hidden = {secret.name for secret in secrets_in(settings, environ)}
    own = {secret.name for secret in secrets_in(pool.api_key or "", environ)}
    return {
        name: value for name, value in environ.items() if name in own or not (name in hidden or _OURS.fullmatch(name))
    }


async def _run(crews: Sequence[_Crew], gateway: str, group: "SharedGpusConfig | None") -> None:
    from proxy.settle.observers.logs import configure_logging
    from selfhosted.engines.scrape import HttpFetch, engine_session
    from selfhosted.scale.gateway_client import GatewayClient
    from selfhosted.scale.processes import Actuator
    from selfhosted.scale.start_turns import StartTurns

    lines = configure_logging("INFO")
    turns = None if group is None else StartTurns(group.pools)
    try:
        async with engine_session() as session:
            await _until_ended(
                [
                    Actuator(
                        crew.pool,
                        crew.launch,
                        door=GatewayClient(session, gateway, crew.pool.name, crew.token),
                        fetch=HttpFetch(session, crew.key),
                        folder=crew.folder,
                        environment=crew.seen,
                        prefix=crew.prefix,
                        part=crew.part,
                        # Nobody decides how many there are where there is room for one.
                        fixed=1 if crew.replicas is None and turns is not None else crew.replicas,
                        turns=turns,
                        level=1 if group is None else group.level,
                    )
                    for crew in crews
                ]
            )
    finally:
        lines.close()


async def _until_ended(actuators: "Sequence[Actuator]") -> None:
    work = asyncio.gather(*(actuator.run() for actuator in actuators))
    asked = False

    def end() -> None:
        nonlocal asked
        if asked:
            work.cancel()
        asked = True
        for actuator in actuators:
            actuator.drain_all()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    with contextlib.suppress(asyncio.CancelledError):
        await work
