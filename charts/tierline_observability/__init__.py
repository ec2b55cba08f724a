"""Generates what people watch Tierline with: Grafana dashboards and docs/reference/metrics.md.

Nothing of it runs in a cluster. Dashboards are written in Grafana's own typed builders, so that the
JSON fits the Grafana that it is for; the page of metrics is read from the registries themselves.
"""
