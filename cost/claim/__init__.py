"""What it would have cost elsewhere, and whether the saving is what was promised."""
