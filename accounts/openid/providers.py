"""The configured sign-in providers of one process. Authlib is imported only if there is one."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from accounts.keys import Pepper
from accounts.openid.openid_errors import SsoUnusable
from accounts.openid.pending import PendingSignIns
from accounts.people.sign_in_config import SignInSection

if TYPE_CHECKING:
    from accounts.openid.oidc import OidcProvider


class Providers:
    """Sign-in providers by name."""

    def __init__(self, providers: Mapping[str, "OidcProvider"]) -> None:
        self._providers = dict(providers)

    def get(self, name: str) -> "OidcProvider | None":
        """Return the provider of this name, or None."""
        return self._providers.get(name)

    async def aclose(self) -> None:
        for provider in self._providers.values():
            await provider.aclose()


def open_providers(
    section: SignInSection, resolve_secret: Callable[[str], str], pepper: Pepper, now_us: Callable[[], int]
) -> Providers:
    """Return the configured providers, without contacting them. Raises SsoUnusable without Authlib."""
    if not section.providers:
        return Providers({})
    if importlib.util.find_spec("authlib") is None:
        raise SsoUnusable("sign_in.providers needs Authlib: pip install 'weighbridge[sso]'")
    from accounts.openid.oidc import OidcProvider  # noqa: PLC0415 - an extra

    assert section.public_url is not None  # noqa: S101 - the section's own check
    begun = PendingSignIns(pepper.secret, now_us=now_us)
    return Providers(
        {
            each.name: OidcProvider(
                each,
                section.public_url,
                None if each.client_secret is None else resolve_secret(each.client_secret),
                begun,
                now_us=now_us,
            )
            for each in section.providers
        }
    )
