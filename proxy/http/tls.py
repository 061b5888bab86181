"""TLS of the public socket."""

import ssl
from pathlib import Path


class TlsInvalid(Exception):
    """The certificate and its key cannot be used; the message says why."""


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Read a certificate chain and its private key, both as PEM. Raises TlsInvalid."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise TlsInvalid(f"cannot use {certificate} with {key}: {error}") from error
    return context
