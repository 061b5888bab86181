"""Security headers of pages: content security policy, and no caching, framing or sniffing."""

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
"""Headers of pages and files."""


def new_nonce() -> str:
    """Return a content security policy nonce, one for each page."""
    return secrets.token_urlsafe(16)


def page_headers(nonce: str, *, form_targets: str = "") -> dict[str, str]:
    """Return headers of a page. `form_targets` are further origins that a form of this page may be redirected to."""
    forms = f"'self' {form_targets}".strip()
    return {
        **SAFE,
        "content-security-policy": _POLICY.format(nonce=nonce, forms=forms),
        "x-frame-options": "DENY",
        "cache-control": "no-store",
        # A cached part must not be served as the whole page.
        "vary": "cookie, hx-request",
    }
