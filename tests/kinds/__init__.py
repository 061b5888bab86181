"""Published schemas of Kubernetes kinds that are not its own: KEDA's and the Prometheus operator's."""
