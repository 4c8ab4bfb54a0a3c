"""Environments written in JAX by other libraries."""
