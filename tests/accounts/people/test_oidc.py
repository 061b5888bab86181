"""What a provider's claims and groups make of somebody."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accounts.people.oidc import MAX_GROUPS, IdentityRefused, groups_of, identity_of, standing_of
from accounts.people.oidc_config import OidcSection

CLAIMS: Final[dict[str, Any]] = {"sub": "7", "email": "Ann@Example.com", "email_verified": True, "name": "Ann"}


def section(**fields: Any) -> OidcSection:
    return OidcSection(
        **{"name": "idp", "label": "the IdP", "issuer": "https://id.example.com/", "client_id": "wb", **fields}
    )


def refused(claims: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(IdentityRefused) as refusal:
        identity_of(claims, section(**fields))
    return refusal.value.reason


def test_who_it_is() -> None:
    """Subject and issuer say who it is; the address is as we store it."""
    identity = identity_of({**CLAIMS, "groups": ["b", "a", "a"]}, section())
    assert (identity.issuer, identity.subject) == ("https://id.example.com/", "7")
    assert (identity.email, identity.name) == ("ann@example.com", "Ann")
    assert identity.groups == frozenset({"a", "b"})


@pytest.mark.parametrize(
    ("verified", "trusted", "email"),
    [
        (True, False, "ann@example.com"),
        ("true", False, "ann@example.com"),
        (False, False, None),
        (False, True, None),
        ("false", True, None),
        (1, False, None),
        (None, False, None),
        (None, True, "ann@example.com"),
    ],
)
def test_only_a_verified_address_counts(verified: object, trusted: bool, email: str | None) -> None:
    """What the provider denies is never believed; where it says nothing, the configuration decides."""
    claims = {**CLAIMS, "email_verified": verified}
    if verified is None:
        del claims["email_verified"]
    assert identity_of(claims, section(emails_are_verified=trusted)).email == email


@pytest.mark.parametrize("email", ["ann", "", 7, None, "ann@example.com\n@evil.example", "a@b@c", "ünn@example.com"])
def test_an_odd_address_is_none(email: object) -> None:
    """What we would not store is not an address, and the person is still who they are."""
    assert identity_of({**CLAIMS, "email": email}, section()).email is None


@pytest.mark.parametrize("subject", [None, "", 7, "x" * 256, ["7"]])
def test_without_a_subject_it_is_nobody(subject: object) -> None:
    """The standard's bound holds: 255 characters."""
    assert refused({**CLAIMS, "sub": subject}) == "bad_subject"


def test_only_the_organisations_addresses() -> None:
    """A domain is compared whole, and an address that is not verified has none."""
    domains = {"email_domains": ("example.com",)}
    assert identity_of(CLAIMS, section(**domains)).email == "ann@example.com"
    for email in ("ann@evil-example.com", "ann@example.com.evil.org", "ann@sub.example.com"):
        assert refused({**CLAIMS, "email": email}, **domains) == "email_domain"
    assert refused({**CLAIMS, "email_verified": False}, **domains) == "email_domain"


def test_only_members_of_some_groups() -> None:
    """One of them is enough, none is not."""
    wanted = {"required_groups": ("gateway", "admins")}
    assert identity_of({**CLAIMS, "groups": ["admins"]}, section(**wanted)).groups == frozenset({"admins"})
    assert refused({**CLAIMS, "groups": ["Admins"]}, **wanted) == "group_missing"
    assert refused(CLAIMS, **wanted) == "group_missing"


@pytest.mark.parametrize(
    ("claims", "claim", "groups"),
    [
        ({"groups": ["a", 7, None, ["b"]]}, "groups", {"a"}),
        ({"groups": "a"}, "groups", {"a"}),
        ({"groups": {"a": 1}}, "groups", set()),
        ({}, "groups", set()),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", {"a"}),
        ({"realm_access": ["a"]}, "realm_access.roles", set()),
        ({"https://example.com/groups": ["a"]}, "https://example.com/groups", {"a"}),
        ({"a.b": ["whole"], "a": {"b": ["inside"]}}, "a.b", {"whole"}),
    ],
)
def test_where_groups_are(claims: dict[str, Any], claim: str, groups: set[str]) -> None:
    """A claim of the whole name comes first; dots lead into others; what is no text is no group."""
    assert groups_of(claims, claim) == groups


def test_a_part_of_the_groups_is_not_taken_for_all() -> None:
    """Where a provider keeps groups back, signing in is refused rather than rights taken away without a word."""
    overage = {**CLAIMS, "_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://x"}}}
    assert refused(overage) == "too_many_groups"
    assert refused({**CLAIMS, "groups": ["a"] * (MAX_GROUPS + 1)}) == "too_many_groups"


def test_what_groups_give() -> None:
    """The first rule with a role gives it; of a team, administering it wins in whatever order."""
    chosen = section(
        groups=(
            {"group": "pay", "team": "payments", "team_role": "admin"},
            {"group": "money", "role": "finance"},
            {"group": "all", "team": "payments"},
            {"group": "all", "team": "search", "role": "operator"},
        )
    )
    assert standing_of(frozenset({"all"}), chosen).role == "operator"
    assert standing_of(frozenset({"all"}), chosen).teams == {"payments": "member", "search": "member"}
    both = standing_of(frozenset({"all", "money", "pay"}), chosen)
    assert both.role == "finance"
    assert both.teams == {"payments": "admin", "search": "member"}
    nothing = standing_of(frozenset({"PAY"}), chosen)
    assert (nothing.role, nothing.teams) == ("", {})
    assert chosen.gives_roles
    assert not section(groups=({"group": "pay", "team": "payments"},)).gives_roles


@given(st.dictionaries(st.sampled_from(["name", "preferred_username", "email", "groups", "_claim_names"]), st.text()))
def test_whatever_a_provider_sends_is_a_person_or_a_refusal(claims: dict[str, Any]) -> None:
    """Names are printable and never empty, whatever was sent."""
    identity = identity_of({"sub": "7", **claims}, section())
    assert identity.name
    assert identity.name.isprintable()
    assert identity.name == identity.name.strip()
    assert len(identity.name) <= 200


@pytest.mark.parametrize(
    "fields",
    [
        {"issuer": "http://id.example.com"},
        {"issuer": "https://user:secret@id.example.com"},
        {"issuer": "https://id.example.com?tenant=1"},
        {"issuer": "id.example.com"},
        {"client_secret": "the secret itself"},
        {"scopes": ("email",)},
        {"scopes": ("openid", "two words")},
        {"groups": ({"group": "a"},)},
        {"groups": ({"group": "a", "role": "root"},)},
        {"groups": ({"group": "a", "team": "A Team"},)},
        {"client_authentication": "client_secret_post"},
        {"name": "Idp"},
        {"timeout_s": 0},
        {"prompt": "none"},
        {"unknown": 1},
    ],
)
def test_a_bad_section_is_refused(fields: dict[str, Any]) -> None:
    """What cannot work, or would not be safe, does not start; a secret is not repeated."""
    with pytest.raises(ValidationError) as refusal:
        section(**fields)
    assert "secret@" not in str(refusal.value)
    assert "the secret itself" not in str(refusal.value)


@pytest.mark.parametrize(
    "issuer", ["http://127.0.0.1:9000", "http://localhost:9000/realms/x", "https://id.example.com"]
)
def test_this_machine_needs_no_tls(issuer: str) -> None:
    """A provider on the loopback may be tried without certificates."""
    assert section(issuer=issuer).issuer == issuer
