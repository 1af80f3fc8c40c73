"""Partitioners: algorithms that group the ops of a graph."""
