"""Synthetic environments in which a claim can be tested on a CPU with thousands of seeds."""
