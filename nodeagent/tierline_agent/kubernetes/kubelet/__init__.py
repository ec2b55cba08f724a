"""The kubelet's protocols for plugins: Kubernetes' own .proto files, and what protoc makes of them.

dra.proto, registration.proto and health.proto are those of k8s.io/kubelet v0.36.3
(pkg/apis/dra/v1, pluginregistration/v1, dra-health/v1alpha1), unchanged. The methods of their
services are named where they are served, in `tierline_agent.kubernetes.driver`.
"""
