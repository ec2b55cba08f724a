"""The API of Tierline: typed models, units, manifests, and the CRDs made from the models.

Nothing here does I/O except `manifests` (reads files) and `crdgen` (writes the CRDs); nothing here
decides anything. Every other part of Tierline may import this package; it imports none of them.
`layout` is all of it that goes into a pod, so it stands alone.
"""
