"""The clients' sockets: protocol, connections, descriptors."""
