"""Where a pool's replicas are: configured, behind a name, behind a Kubernetes Service, or as they say themselves."""
