"""Our own engines, wired into one gateway process."""
