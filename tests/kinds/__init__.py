"""Published schemas of Kubernetes kinds that are not its own: KEDA's, the Prometheus operator's and the Gateway API's."""
