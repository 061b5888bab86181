"""The data plane's HTTP/1.1 server: connections, their requests and replies, and the bounds of their cost. It knows
no models.

Example: `server = HttpServer({"/healthz": {"GET": route}}, otherwise)`, then `await server.listen(listener)`; a route
is an async function of an Exchange, and ends with `exchange.respond(200, headers, body)`.
"""
