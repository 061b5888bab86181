"""What `config check` does with plug-ins: loads each and calls it once with sample facts."""

import asyncio
import functools
from collections.abc import Callable
from typing import Final

from gateway.configuration.file import Document, KeyPath, Problem
from gateway.configuration.plugins_config import PluginConfig
from gateway.plugins.alarm import TooLong, bounded
from gateway.plugins.loading import PluginInvalid, load_plugin, secrets_of, told
from weighbridge.plugins.checking import PluginFault
from weighbridge.plugins.testing import called_once

_ROOM: Final = 10.0
"""Times its deadline that a first call may take: it may have to connect."""
_LEAST_S: Final = 1.0
_LONGEST_S: Final = 120.0
"""Seconds for one that never gives the loop back; it is interrupted."""


def plugin_problems(
    section: list[PluginConfig], document: Document, resolve_secret: Callable[[str], str]
) -> list[Problem]:
    """Return a problem, with its line, for each plug-in that cannot be used. One that is broken keeps no other from being tried."""
    problems = []
    for index, config in enumerate(section):
        where: KeyPath = ("plugins", index, "use")
        try:
            found = bounded(functools.partial(_run, config, resolve_secret), _LONGEST_S)
        except TooLong:
            found = f"{config.use} did not answer a call with sample facts within {_LONGEST_S:g} s"
        if found is not None:
            problems.append(document.problem(where, found))
    return problems


def _run(config: PluginConfig, resolve_secret: Callable[[str], str]) -> str | None:
    return asyncio.run(_tried(config, resolve_secret))


async def _tried(config: PluginConfig, resolve_secret: Callable[[str], str]) -> str | None:
    try:
        plugin = load_plugin(config, resolve_secret).plugin
    except PluginInvalid as invalid:
        return str(invalid)
    within = max(_LEAST_S, config.deadline_s * _ROOM)
    try:
        await called_once(plugin, config.kind, within)
    except TimeoutError:
        return f"{config.use} did not answer a call with sample facts within {within:g} s"
    except PluginFault as fault:
        return f"{config.use}: {fault}"
    except Exception as error:  # noqa: BLE001 - whatever it raises is told
        return (
            f"{config.use} raises {told(error, secrets_of(config, resolve_secret))} when it is called with sample facts"
        )
    finally:
        close = getattr(plugin, "aclose", None)
        if asyncio.iscoroutinefunction(close):
            await asyncio.wait({asyncio.ensure_future(close())}, timeout=_LEAST_S)
    return None
