"""An OpenID provider's claims as an identity and its rights here. Pure; signatures are checked before."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from accounts.access import OrganisationRole, TeamRole
from accounts.people.oidc_config import OidcSection
from accounts.people.people import normal_email
from accounts.people.people_errors import BadEmail
from accounts.tables import NAME_CHARS

MAX_GROUPS: Final = 5_000
SUBJECT_CHARS: Final = 255


class IdentityRefused(Exception):
    """An identity that may not sign in, or whose claims cannot be used. `message` is for the person, `reason` for logs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A person as an OpenID provider describes them."""

    issuer: str
    subject: str
    email: str | None
    """Lower-case e-mail address; None unless the provider says that it is verified."""
    name: str
    groups: frozenset[str] = frozenset()


class GroupRights(msgspec.Struct, frozen=True, kw_only=True):
    """The organisation role and team roles that a person's groups give."""

    role: OrganisationRole
    teams: Mapping[str, TeamRole]


def identity_of(claims: Mapping[str, Any], section: OidcSection) -> Identity:
    """Return the identity in verified claims. Raises IdentityRefused for a person whom the configuration keeps out."""
    email = _verified_email(claims, section)
    identity = Identity(
        issuer=section.issuer,
        subject=_subject(claims),
        email=email,
        name=_display_name(claims, email),
        groups=groups_of(claims, section.groups_claim),
    )
    _check_domain(identity, section)
    if section.required_groups and identity.groups.isdisjoint(section.required_groups):
        raise IdentityRefused(
            "group_missing",
            f"Your account at {section.label} is in none of the groups that may use this gateway. "
            "Ask your administrators to add you to one.",
        )
    return identity


def standing_of(groups: frozenset[str], section: OidcSection) -> GroupRights:
    """Return the rights that groups give: the role of the first matching rule that has one, and every matching rule's team.

    Of several rules for one team, `admin` wins.
    """
    fitting = [rule for rule in section.groups if rule.group in groups]
    role: OrganisationRole = next((rule.role for rule in fitting if rule.role is not None), "")
    teams: dict[str, TeamRole] = {}
    for rule in fitting:
        if rule.team is not None and teams.get(rule.team) != "admin":
            teams[rule.team] = rule.team_role
    return GroupRights(role=role, teams=teams)


def groups_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """Return the groups in the claim; none where it is missing. Raises IdentityRefused when the provider left some out."""
    elsewhere = claims.get("_claim_names")
    if claim not in claims and isinstance(elsewhere, Mapping) and claim in elsewhere:
        # Entra ID does this beyond 200 groups. Taking them for none would take rights away without a word.
        raise _too_many_groups()
    found = claims[claim] if claim in claims else _claim_at(claims, claim)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    if len(listed) > MAX_GROUPS:
        raise _too_many_groups()
    return frozenset(group for group in listed if isinstance(group, str))


def _too_many_groups() -> IdentityRefused:
    return IdentityRefused(
        "too_many_groups",
        "You are in more groups than the sign-in provider tells. Ask its administrators to send this gateway only the "
        "groups that are assigned to it.",
    )


def _claim_at(claims: Mapping[str, Any], path: str) -> Any:
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS:
        raise IdentityRefused("bad_subject", "The sign-in provider did not say who you are. Tell your administrators.")
    return subject


def _verified_email(claims: Mapping[str, Any], section: OidcSection) -> str | None:
    email, verified = claims.get("email"), claims.get("email_verified")
    # Some providers write the boolean as a text.
    vouched = verified is True or verified == "true" if verified is not None else section.emails_are_verified
    if not vouched or not isinstance(email, str):
        return None
    try:
        return normal_email(email)
    except BadEmail:
        return None


def _check_domain(identity: Identity, section: OidcSection) -> None:
    if not section.email_domains:
        return
    domain = (identity.email or "").rpartition("@")[2]
    if domain not in section.email_domains:
        raise IdentityRefused(
            "email_domain",
            f"This gateway takes only people whose verified e-mail address at {section.label} is the organisation's. "
            "Sign in there with that account, then try again.",
        )


def _display_name(claims: Mapping[str, Any], email: str | None) -> str:
    for name in (claims.get("name"), claims.get("preferred_username"), email):
        if isinstance(name, str):
            shown = "".join(char for char in name if char.isprintable()).strip()[:NAME_CHARS]
            if shown:
                return shown
    return "(no name)"
