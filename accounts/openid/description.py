"""A provider's metadata (OpenID Connect Discovery 1.0), validated."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from accounts.openid.fetch import ProviderHttp
from accounts.openid.openid_errors import ProviderFailed
from accounts.people.oidc_config import OidcSection, is_secure

# Symmetric algorithms and `none` are not among them, whatever a provider says: its keys are public.
ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"}
)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata fields that signing in uses."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False

    @property
    def algorithms(self) -> frozenset[str]:
        """Signature algorithms that both the provider and the gateway support."""
        return ALGORITHMS.intersection(self.id_token_signing_alg_values_supported)


def description_of(found: Mapping[str, Any], section: OidcSection) -> Description:
    """Validate metadata. Raises ProviderFailed for another issuer's, for incomplete metadata, or for addresses that
    could be eavesdropped on.
    """
    if found.get("issuer") != section.issuer:
        raise ProviderFailed("description: its issuer is not the configured one", section.label)
    known = {name: found[name] for name in Description.__struct_fields__ if found.get(name) is not None}
    try:
        description = msgspec.convert(known, Description)
    except msgspec.ValidationError as failure:
        raise ProviderFailed("description: incomplete or of another form", section.label) from failure
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
        address = getattr(description, name)
        if address is not None and not is_secure(address):
            raise ProviderFailed(f"description: {name} is not https", section.label)
    if not description.algorithms:
        raise ProviderFailed("description: it signs with none of the algorithms that are accepted", section.label)
    return description


async def describe(http: ProviderHttp, section: OidcSection) -> Description:
    """Fetch the metadata. Raises ProviderFailed."""
    address = section.issuer.removesuffix("/") + "/.well-known/openid-configuration"
    return description_of(await http.get("description", address), section)
