"""Exports a trained policy as one file that runs without JAX, and proves that the file is the policy."""
