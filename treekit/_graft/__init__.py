"""Carry the values of one tree over to a tree of another structure."""
