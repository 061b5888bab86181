"""The configuration of the HTTP server."""

from gateway.configuration.settings import ServerConfig
from proxy.http.connection import ConnectionLimits


def connection_limits(server: ServerConfig) -> ConnectionLimits:
    """Limits on connections, of which a reload may change those in seconds."""
    return ConnectionLimits(
        body_timeout_s=server.body_timeout_s,
        slow_reader_s=server.slow_reader_s,
        max_bodies_bytes=server.max_bodies_bytes,
    )
