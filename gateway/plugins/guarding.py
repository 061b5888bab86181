"""Guards of plug-ins: closed, so whoever gives no verdict lets nothing pass."""

from collections.abc import Sequence

import msgspec

from gateway.plugins.calls import Calls, NoAnswer
from proxy.errors import PluginUnavailable
from weighbridge.plugins import Guard, RequestFacts, Text, Verdict
from weighbridge.plugins.checking import checked_verdict


class Guarding(msgspec.Struct, frozen=True):
    """One guard."""

    guard: Guard
    calls: Calls

    async def judge(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        """Return the guard's verdict on all of these texts. Raises PluginUnavailable where it gives none."""

        async def asked() -> Verdict:
            return checked_verdict(await self.guard.check(texts, facts), texts)

        try:
            return await self.calls.ask(asked)
        except NoAnswer as none:
            raise PluginUnavailable(
                f"The request cannot be checked right now, as {none}. Try again shortly.", retry_after_s=1.0
            ) from none
