"""Runs on disk: their folders, the list of them, and summary files (ours and the released tool's)."""
