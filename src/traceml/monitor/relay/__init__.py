"""Between nodes: what a node's recording folder holds reaches node 0's, once and in order."""
