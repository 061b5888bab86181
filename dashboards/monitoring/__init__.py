"""Grafana dashboards and Prometheus rules, as files to import."""
