"""A real Kubernetes on one machine, for tests and for newcomers.

Built from Go modules once and cached; started and removed again within seconds. Nothing of Tierline
is imported here, and nothing but Python's own library: the control plane needs `openssl` and runs
as any user; a node needs root, runc and the CNI plugins.

    versions       the pinned releases, and what each build makes
    cache          the user's cache, where they lie for all clones
    build          builds them once
    processes      starts daemons, waits for them, ends them, recognises them later
    certificates   one authority, certificates, kubeconfigs
    control_plane  etcd, kube-apiserver, and on wish controllers and scheduler
    api            requests to an API server, in plain JSON
    bridge         the network of pods
    cgroups        one control group for all processes of a cluster
    images         container images from files
    node           containerd and kubelet
    cluster        all of it, up and down
"""
