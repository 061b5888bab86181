"""Discovery of a pool's replicas: static configuration, DNS, a Kubernetes Service, or registration."""
