"""What changed between two runs, and whether it is real or noise. Pure: summaries in, one Comparison out."""
