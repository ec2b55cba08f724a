"""The API of Tierline: typed models, units, manifests, and the CRDs made from the models.

Nothing here does I/O except `manifests` (reads files) and `crdgen` (writes the CRDs); nothing here
decides anything. Every other part of Tierline may import this package; it imports none of them.
`layout` and `schema.quantities` are all of it that is loaded in pods, so they stand alone.
"""
