"""A network bridge for pods, made and removed by ioctl: no program is needed for it.

The bridge's own address is the node's: a kubelet takes none of the loopback. It never leaves the
machine.
"""

import fcntl
import socket
import struct
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Final

from .errors import ClusterError

_ADD_BRIDGE: Final = 0x89A0
_REMOVE_BRIDGE: Final = 0x89A1
_SET_FLAGS: Final = 0x8914
_SET_ADDRESS: Final = 0x8916
_SET_NETMASK: Final = 0x891C
_UP: Final = 1


def free_network() -> IPv4Network:
    """Return a private network of 256 addresses that no route of this machine touches."""
    taken = list(_routes())
    for third in range(77, 255):
        network = IPv4Network(f"10.88.{third}.0/24")
        if not any(network.overlaps(route) for route in taken if route.prefixlen > 0):
            return network
    raise ClusterError("cannot find a network for pods: all of 10.88.77.0-10.88.254.0 is routed")


def add(name: str, interface: IPv4Interface) -> None:
    """Make the bridge `name` with the address and network of `interface`, and bring it up.

    Raises ClusterError.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _ADD_BRIDGE, name.encode() + b"\0")
            fcntl.ioctl(control, _SET_ADDRESS, _address(name, interface.ip))
            fcntl.ioctl(control, _SET_NETMASK, _address(name, interface.netmask))
            fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH22x", name.encode(), _UP))
    except OSError as error:
        raise ClusterError(
            f"cannot make the network bridge {name}: {error}; a node needs root and a kernel with"
            " bridges"
        ) from error


def add_address(name: str, number: int, interface: IPv4Interface) -> None:
    """Give the bridge `name` one more address, the `number`-th from 1. Raises ClusterError."""
    label = f"{name}:{number}"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SET_ADDRESS, _address(label, interface.ip))
            fcntl.ioctl(control, _SET_NETMASK, _address(label, interface.netmask))
    except OSError as error:
        raise ClusterError(f"cannot give {name} the address {interface}: {error}") from error


def remove(name: str) -> None:
    """Remove the bridge `name`, if it is there."""
    if not Path("/sys/class/net", name).exists():
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH22x", name.encode(), 0))
        fcntl.ioctl(control, _REMOVE_BRIDGE, name.encode() + b"\0")


def _address(name: str, address: IPv4Address) -> bytes:
    """Return a `struct ifreq` that holds an address."""
    return struct.pack("16sHH4s16x", name.encode(), socket.AF_INET, 0, address.packed)


def _routes() -> list[IPv4Network]:
    routes = []
    for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        # Both are written as the machine's own numbers.
        start = IPv4Address(struct.pack("=I", int(destination, 16)))
        routes.append(IPv4Network((start, bin(int(mask, 16)).count("1"))))
    return routes
