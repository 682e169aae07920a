"""Views of a Summary or a Comparison. No arithmetic: every number shown is in there already."""
