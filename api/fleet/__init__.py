"""/v1/fleet: pools and replicas of our own engines, their prefixes, versions and rollouts."""
