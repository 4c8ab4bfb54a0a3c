"""Skill discovery: agents that learn skills without a reward, and a planner that uses the skills."""
