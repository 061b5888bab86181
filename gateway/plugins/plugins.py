"""The plug-ins of one process, by kind, as the pipeline takes them."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from accounts.named_keys import NamedKeys
from gateway.configuration.plugins_config import PluginConfig
from gateway.plugins.authenticating import Authenticating, OutsideCallers
from gateway.plugins.calls import Calls
from gateway.plugins.exporting import Exporting
from gateway.plugins.guarding import Guarding
from gateway.plugins.loading import Loaded, PluginInvalid, load_plugin
from gateway.plugins.plugin_metrics import PluginMetrics
from gateway.plugins.scoring import Scoring, scores_of
from gateway.plugins.speaking import Speaking
from proxy.plan.scores import Scoring as Scores
from weighbridge.plugins import Kind

_log: Final = logging.getLogger("weighbridge.plugins")
_CLOSE_S: Final = 2.0


class Plugins:
    """What the configuration names, loaded; empty where it names nothing."""

    def __init__(
        self,
        section: Sequence[PluginConfig],
        resolve_secret: Callable[[str], str],
        metrics: PluginMetrics,
    ) -> None:
        """Load them all. Raises PluginInvalid with the first that cannot be used."""
        self._metrics = metrics
        self._loaded = [_load(config, resolve_secret) for config in section]
        self._calls = {
            each.config.name: Calls(each.config.name, each.config.deadline_s, metrics) for each in self._loaded
        }

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(self._calls)

    @property
    def out(self) -> tuple[str, ...]:
        """The names of those that are taken out now."""
        return tuple(name for name, calls in self._calls.items() if calls.is_out)

    def guards(self) -> Mapping[str, Guarding]:
        """Return the guards by name."""
        return {each.config.name: Guarding(each.plugin, self._calls_of(each)) for each in self._of("guard")}

    def check_guards(self, wanted: Iterable[str]) -> None:
        """Raise PluginInvalid for a guard that is asked by a configuration that was read anew, and does not run yet."""
        running = self.guards()
        for name in wanted:
            if name not in running:
                raise PluginInvalid(f"the guard `{name}` of `plugins` runs only after a restart")

    def dialects(self) -> Mapping[str, Speaking]:
        """Return the dialects that deployments may name."""
        return {each.config.name: Speaking(each.plugin, self._calls_of(each)) for each in self._of("dialect")}

    def scoring(self) -> Scores | None:
        """Return a function that asks all scorers; None without one."""
        scorers = [Scoring(each.plugin, self._calls_of(each), each.config.text) for each in self._of("scorer")]
        return scores_of(scorers) if scorers else None

    def outside(self, keys: NamedKeys) -> OutsideCallers | None:
        """Return what knows callers without a key of the gateway; None where nothing does."""
        authenticators = [
            Authenticating(
                each.plugin,
                self._calls_of(each),
                frozenset(name.lower().encode() for name in each.config.headers),
                each.config.organisation,
            )
            for each in self._of("authenticator")
        ]
        return OutsideCallers(authenticators, keys) if authenticators else None

    def exporters(self, stack: contextlib.AsyncExitStack) -> tuple[Exporting, ...]:
        """Start the exporters; the stack delivers what is left."""
        found = tuple(
            Exporting(each.plugin, self._calls_of(each), self._metrics, text=each.config.text)
            for each in self._of("exporter")
        )
        for each in found:
            each.start()
            stack.push_async_callback(each.aclose)
        return found

    async def aclose(self) -> None:
        """Close those that have something to close, each within a moment."""
        for each in self._loaded:
            close = getattr(each.plugin, "aclose", None)
            if inspect.iscoroutinefunction(close):
                try:
                    async with asyncio.timeout(_CLOSE_S):
                        await close()
                except Exception as error:  # noqa: BLE001 - the others are closed all the same
                    _log.warning("the plug-in %s did not close (%s)", each.config.name, type(error).__name__)

    def _of(self, kind: Kind) -> list[Loaded]:
        return [each for each in self._loaded if each.config.kind == kind]

    def _calls_of(self, loaded: Loaded) -> Calls:
        return self._calls[loaded.config.name]


def _load(config: PluginConfig, resolve_secret: Callable[[str], str]) -> Loaded:
    try:
        return load_plugin(config, resolve_secret)
    except PluginInvalid as invalid:
        raise PluginInvalid(f"plugins.{config.name}: {invalid}") from invalid
