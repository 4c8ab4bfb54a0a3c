"""Greedy rollouts, their statistics, and trained policies as functions."""
