"""How to speak to one upstream, and when not to: wire types, targets, upstreams, breakers."""
