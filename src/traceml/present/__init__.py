"""Shows a Summary. No arithmetic here: what is shown is in the summary."""
