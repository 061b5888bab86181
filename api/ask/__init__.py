"""Questions in words about spend and requests, answered by the gateway's own `auto` over read-only tools."""
