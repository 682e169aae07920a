"""What was recorded, for other tools: tables of steps, samples and events, and a file for each format."""
