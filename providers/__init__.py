"""The way to an upstream: targets and their quirks as data, clients by protocol, and when not to call one.

catalog = build_catalog(section, resolve_secret)
upstreams = Upstreams({"openai": HttpUpstream()})
stream = await upstreams.open(call)
while (events := await stream.read()) is not None:
    ...
await stream.aclose()
"""
