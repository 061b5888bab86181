"""How late an answer may be: the section of the configuration, and one value from queue to upstream."""
