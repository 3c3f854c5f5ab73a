"""Which leaves are trained?

- `declared`: which leaves does a class around them declare not to be trained?
- `leaves`: which leaves can be trained, and which of them are? Optimizers, masks and summaries all ask here.
"""
