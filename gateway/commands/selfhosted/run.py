"""`weighbridge selfhosted run`: as many engine processes on this machine as the pool should have."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from gateway.configuration.settings import GatewayConfig
    from selfhosted.config import LaunchConfig, PoolConfig
    from selfhosted.scale.processes import Actuator

_OURS: Final = re.compile(r"WEIGHBRIDGE_.*|DATABASE_URL|REDIS_URL|OTEL_.*")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_PREFIX: Final = 48


def run(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A pool's name, as in selfhosted.pools.")],
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
    """Start engines, register them, drain and end them, as the gateway decides. One such command for each pool.

    SIGTERM or Ctrl-C drains and ends them all; a second one does not wait for their work.
    """
    import os

    from gateway.configuration.settings import load, read_environment
    from selfhosted.config import PoolUnfit

    if not gateway.startswith(("http://", "https://")) or "@" in gateway:
        raise PoolUnfit("--gateway begins with http:// or https://, and has no user")
    environment = read_environment()
    settings = load(config, environment, secrets_from=None)
    chosen, launch, token_at = _pool(settings, pool)
    place = folder if folder is not None else environment.data_dir / "engines" / pool
    prefix = _UNFIT.sub("-", name or socket.gethostname().partition(".")[0]).strip("-._")[:_LONGEST_PREFIX] or "engine"
    work = _run(
        chosen,
        launch,
        gateway=gateway,
        token=_secret(token_at, f"`registration.token` of `{pool}`"),
        api_key=None if chosen.api_key is None else _secret(chosen.api_key, f"`api_key` of `{pool}`"),
        folder=place.absolute(),
        seen=_seen_by_engines(os.environ, settings, chosen),
        prefix=prefix,
        replicas=replicas,
    )
    asyncio.run(work)


def _pool(settings: "GatewayConfig", name: str) -> "tuple[PoolConfig, LaunchConfig, str]":
    """Returns the pool and what running it on this machine needs."""
    from selfhosted.config import PoolUnfit

    pools = {each.name: each for each in settings.selfhosted.pools}
    pool = pools.get(name)
    if pool is None:
        known = ", ".join(sorted(pools)) or "none"
        raise PoolUnfit(f"there is no pool `{name}`; the configuration has under `selfhosted.pools`: {known}")
    if pool.launch is None:
        raise PoolUnfit(f"`{name}` has no `launch`: its `command` says how an engine is started")
    if pool.registration is None:
        raise PoolUnfit(f"`{name}` has no `registration`: its `token` and `networks` let this command tell the gateway")
    return pool, pool.launch, pool.registration.token


def _secret(reference: str, whose: str) -> str:
    from gateway.configuration.settings import resolve_secret
    from selfhosted.config import PoolUnfit

    try:
        return resolve_secret(reference)
    except (LookupError, OSError):
        raise PoolUnfit(f"{whose} refers to {reference}, which is not set") from None


def _seen_by_engines(environ: Mapping[str, str], settings: "GatewayConfig", pool: "PoolConfig") -> dict[str, str]:
    """The environment of engine processes: they run code that came with a model, so their own key is the only secret
    they see.
    """
    from providers.secret_references import secrets_in

    hidden = {secret.name for secret in secrets_in(settings, environ)}
    own = {secret.name for secret in secrets_in(pool.api_key or "", environ)}
    return {
        name: value for name, value in environ.items() if name in own or not (name in hidden or _OURS.fullmatch(name))
    }


async def _run(
    pool: "PoolConfig",
    launch: "LaunchConfig",
    *,
    gateway: str,
    token: str,
    api_key: str | None,
    folder: Path,
    seen: Mapping[str, str],
    prefix: str,
    replicas: int | None,
) -> None:
    from proxy.observers.logs import configure_logging
    from selfhosted.engines.scrape import HttpFetch, engine_session
    from selfhosted.scale.gateway_client import Doorbell
    from selfhosted.scale.processes import Actuator

    lines = configure_logging("INFO")
    try:
        async with engine_session() as session:
            actuator = Actuator(
                pool,
                launch,
                door=Doorbell(session, gateway, pool.name, token),
                fetch=HttpFetch(session, api_key),
                folder=folder,
                environment=seen,
                prefix=prefix,
                fixed=replicas,
            )
            await _until_ended(actuator)
    finally:
        lines.close()


async def _until_ended(actuator: "Actuator") -> None:
    work = asyncio.ensure_future(actuator.run())
    asked = False

    def end() -> None:
        nonlocal asked
        if asked:
            work.cancel()
        asked = True
        actuator.drain_all()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    with contextlib.suppress(asyncio.CancelledError):
        await work
