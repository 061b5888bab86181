"""/v1/focus: the FOCUS export."""
