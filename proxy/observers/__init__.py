"""What the gateway tells of itself: metrics, logs and traces, all from the one outcome of a request."""
