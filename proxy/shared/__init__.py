"""Parts that several stages use: the deadline, the latency of targets, background tasks, and the link to Redis."""
