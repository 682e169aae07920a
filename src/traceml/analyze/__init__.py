"""Pure functions: rows in, findings out. No clock, no file, no socket, no torch."""
