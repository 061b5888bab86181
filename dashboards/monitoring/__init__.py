"""Grafana's dashboards and Prometheus's rules, as files to be imported."""
