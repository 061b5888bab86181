"""The judge stage: a held answer is found weak or not, compared with another, and asked again of a better target."""
