"""What the sections of the configuration are made of."""
