"""What writes pages of evidence and tracks figures; the benchmarks that a reader runs are in the folder above.

- `figures`: the figures that we track, with their goals; `figures.json` has the last ones recorded. Run `make figures`.
- `accelerators`: results/accelerators.md. `compiled` compiles steps for TPUs and GPUs, and `hlo` counts bytes in them.
- `matrix`: results/matrix.md. `matrix_cells` has the cells, and `matrix_page` writes the page.
- `typed_peers`: a table in docs/versions.md. `checkers` runs mypy and pyright.
"""
