"""The live view in a terminal: pure functions that make lines from a `Live`, and one Textual app."""
