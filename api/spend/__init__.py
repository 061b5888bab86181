"""/spend/logs and its neighbours, in litellm's shapes."""
