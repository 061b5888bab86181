"""/metrics: Prometheus's exposition."""
