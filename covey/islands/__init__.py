"""Populations divided into islands that exchange members asynchronously, with Ray."""
