"""Self-hosted inference: pools of engine replicas, their health, balancing and scaling."""
