"""Pure functions from rows to findings. No clock, no file, no socket, no torch."""
