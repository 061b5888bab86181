"""TLS to receivers that have an authority of their own, or ask for our certificate."""

import ssl
from collections.abc import Callable
from pathlib import Path

Tls = Callable[[], ssl.SSLContext]
"""Reads the files anew, as certificates are renewed under the same names."""


def tls_of(ca: Path | None, certificate: Path | None, key: Path | None) -> Tls:
    """Return what makes contexts. It raises OSError where a file is not there or no PEM."""

    def made() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return context

    return made
