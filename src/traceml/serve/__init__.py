"""The server for browsers: a process of its own that reads run folders and sends what it finds."""
