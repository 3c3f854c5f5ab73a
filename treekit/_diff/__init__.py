"""`tree_diff`.

`diff` compares trees and writes the table, `leaf_diff` compares two leaves. Their numbers are compared by `values` on
the host, and by `on_devices` where they are sharded.
"""
