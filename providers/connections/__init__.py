"""Connections to upstreams: HTTP/1.1 on asyncio and httptools, kept between calls. It knows nothing of models."""
