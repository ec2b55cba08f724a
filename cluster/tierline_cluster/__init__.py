"""A real Kubernetes on one machine, for tests and for newcomers.

Built from Go modules once and cached; started and removed again within seconds. Only Python's own
library, Go at build time, and `openssl` are needed for the control plane, which any user may run;
a node needs root, containerd's `runc` and the CNI plugins. Nothing of Tierline is imported here.

    folder      what it does
    versions    the pinned releases, and what each build makes
    build       builds them once into .cache/cluster
    processes   starts daemons, waits for them, ends them, recognises them later
    certificates  one authority, certificates, kubeconfigs
    control_plane etcd, kube-apiserver, and on wish controllers and scheduler
    api         requests to an API server, in plain JSON
"""
