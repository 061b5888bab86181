"""Addresses that a team's administrators enter themselves, within the hosts that the operator allows.

An address is kept as one text, whose scheme says how a message is sent: `https:` signed with the team's callback secret,
`slack+https:` in Slack's shape, `mailto:` by the configured mail server.
"""

from collections.abc import Sequence
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from api.webhooks.addresses import BadCallbackUrl, CallbackAddresses
from api.webhooks.webhooks_config import WebhooksSection, mail_address

Shape = Literal["standard", "slack", "mail"]
SHAPES: Final[tuple[Shape, ...]] = get_args(Shape)
SLACK: Final = "slack+"
MAIL: Final = "mailto:"


class TeamAddresses:
    """The rules for addresses of teams: the operator's hosts, and those of every callback."""

    def __init__(self, hosts: Sequence[str], addresses: CallbackAddresses, *, has_mail: bool) -> None:
        self.hosts = tuple(hosts)
        self.shapes = tuple(shape for shape in SHAPES if shape != "mail" or has_mail)
        self._addresses = addresses

    def made(self, shape: Shape, typed: str) -> str:
        """Return the address to keep. Raises BadCallbackUrl, whose message ends the sentence "The address …"."""
        plain = typed.strip()
        if plain.startswith((SLACK, MAIL)):
            raise BadCallbackUrl("needs no scheme of its own beside https://: choose what it is")
        address = {"standard": "", "slack": SLACK, "mail": MAIL}[shape] + plain
        self.check(address)
        return address

    def check(self, address: str) -> None:
        """Raise BadCallbackUrl for an address that nothing may be sent to."""
        if address.startswith(MAIL):
            if "mail" not in self.shapes:
                raise BadCallbackUrl("cannot get mail: no mail server is configured")
            try:
                mail_address(address.removeprefix(MAIL))
            except ValueError as error:
                raise BadCallbackUrl(str(error)) from error
        else:
            self._addresses.check_url(address.removeprefix(SLACK))
        host = host_of(address)
        if not any(_fits(host, allowed) for allowed in self.hosts):
            raise BadCallbackUrl(f"must be at one of: {', '.join(self.hosts)}")


def team_addresses(section: WebhooksSection, addresses: CallbackAddresses) -> TeamAddresses | None:
    """Return the configured rules; None where teams have no addresses of their own."""
    if not section.team_hosts:
        return None
    return TeamAddresses(section.team_hosts, addresses, has_mail=section.mail is not None)


def host_of(address: str) -> str:
    """Return the host, or the domain of a mail address: all of an address that is shown, as the rest may be a secret."""
    if address.startswith(MAIL):
        return address.rpartition("@")[2].lower()
    return (urlsplit(address.removeprefix(SLACK)).hostname or "").lower()


def _fits(host: str, allowed: str) -> bool:
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed
