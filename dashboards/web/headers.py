"""What every page's reply carries: a strict content policy, and that nobody keeps, frames or guesses it."""

import secrets
from typing import Final

_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}' 'strict-dynamic'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action {forms}; frame-ancestors 'none'; base-uri 'none'; object-src 'none'"
)
SAFE: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Of files, too."""


def new_nonce() -> str:
    """One for each page."""
    return secrets.token_urlsafe(16)


def page_headers(nonce: str, *, form_targets: str = "") -> dict[str, str]:
    """`form_targets` are origins beside our own that a form of this page may end at, after a redirect."""
    forms = f"'self' {form_targets}".strip()
    return {
        **SAFE,
        "content-security-policy": _POLICY.format(nonce=nonce, forms=forms),
        "x-frame-options": "DENY",
        "cache-control": "no-store",
        # What a browser is told to reload partly must not stand in for the whole page.
        "vary": "cookie, hx-request",
    }
