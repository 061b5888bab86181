"""The audit actor of an API request."""

from fastapi import Request

from accounts.access import principal_of
from accounts.audit.entry import Actor
from accounts.caller import Caller
from api.web.address import address_of
from api.web.gateway import gateway_of


def actor_of(request: Request, caller: Caller) -> Actor:
    """Return the key as an audit actor, with the client's address."""
    gateway = gateway_of(request)
    address = address_of(request, gateway.config().sign_in.trusted_proxies)
    return Actor.of_principal(principal_of(caller, gateway.operator), address)
