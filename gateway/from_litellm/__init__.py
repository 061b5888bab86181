"""From LiteLLM's proxy to here: its configuration file and its database, and what became of each of their lines.

    source = read_source(Path("config.yaml"), account, variables)
    written = translate(source, account, secrets)      # our configuration, as plain values

What a key of LiteLLM becomes is in `keys.toml`, or in a function here where it takes more than words. A key that neither knows is
told as unknown, never dropped.
"""
