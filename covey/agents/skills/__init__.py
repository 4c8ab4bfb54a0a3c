"""Skill discovery: agents that learn without reward, and a planner over their skills."""
