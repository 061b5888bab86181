"""Our own GPUs: replicas and pools."""
