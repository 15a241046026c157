"""Free ports for servers that a test starts, and may start again on the same port."""

import random
import socket

# The system gives ports of 32768 and above to outgoing connections. A port from that range may be taken by another
# program while its server is down.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Returns a port that is free now, and that the system gives to no outgoing connection."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
