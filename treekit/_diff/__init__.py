"""`tree_diff`: `leaf_diff` compares two leaves, and `diff` compares trees and writes the table."""
