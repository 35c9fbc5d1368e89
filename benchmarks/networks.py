"""Networks between processes of this machine: delay, loss, bandwidth, and links that are cut.

Each host is a network namespace of Linux with a TUN device, so its processes have their own TCP stack and addresses. A
thread in this process gets the IP packets that the processes send, and delivers a packet later, or not at all:

    process in host 0 -> TUN device -> Network's thread: delay, rate, loss, cut -> TUN device -> process in host 1

It needs root and iproute2; `why_not` reports what is missing.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_NUMBERS = itertools.count()


def why_not() -> str | None:
    """The reason why this machine cannot have a Network; None if it can."""
    if not shutil.which("ip"):
        return "needs iproute2"
    try:
        with Network(1):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces are not allowed here ({error})"


class Network:
    """A context with hosts that reach each other through one router.

    Attributes:
      addresses: the addresses of the hosts.
      sent: the bytes that each host has sent, including the headers of IP and TCP.
    """

    def __init__(
        self, hosts: int, *, delay: float = 0.0, loss: float = 0.0, rate: float | None = None, mtu: int = 1500
    ):
        """Defines the network, which starts as a context.

        Args:
          hosts: the number of hosts.
          delay: the seconds from one host to another; a round trip takes twice as long.
          loss: the share of packets that do not arrive.
          rate: bytes per second that a host can send; None for no limit.
          mtu: bytes of the largest packet.
        """
        name = f"bert{os.getpid()}-{next(_NUMBERS)}"
        self._names = [f"{name}-{host}" for host in range(hosts)]
        self.addresses = [f"10.77.0.{host + 1}" for host in range(hosts)]
        self.sent = [0] * hosts
        self._delay, self._loss, self._rate, self._mtu = delay, loss, rate, mtu
        self._cut: set[int] = set()
        self._random = random.Random(1)

    def __enter__(self) -> Network:
        with contextlib.ExitStack() as made:
            self._devices = [self._host(made, *host) for host in zip(self._names, self.addresses, strict=True)]
            self._end, self._told = os.pipe()
            thread = threading.Thread(target=self._carry, daemon=True)
            thread.start()
            made.callback(lambda: (os.close(self._told), thread.join(), os.close(self._end)))
            self._made = made.pop_all()
        return self

    def __exit__(self, *exception) -> None:
        self._made.close()

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """A command line that runs `command` in a host; signals reach `command`."""
        return ["ip", "netns", "exec", self._names[host], *command]

    def cut(self, host: int) -> None:
        """Cuts a host off without notice, as if a cable were pulled: no packet reaches or leaves the host."""
        self._cut.add(host)

    def mend(self, host: int) -> None:
        self._cut.discard(host)

    def _host(self, made: contextlib.ExitStack, name: str, address: str) -> int:
        """Makes a host; returns the file descriptor of its device, which reads and writes whole packets."""

        def ip(*words: str) -> None:
            subprocess.run(["ip", *words], check=True, capture_output=True)

        device = os.open("/dev/net/tun", os.O_RDWR)
        made.callback(os.close, device)
        interface = name[-15:]  # the maximum length of a device's name
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", interface.encode(), _IFF_TUN | _IFF_NO_PI))
        os.set_blocking(device, False)
        ip("netns", "add", name)
        made.callback(ip, "netns", "delete", name)
        ip("link", "set", interface, "netns", name)
        ip("-n", name, "addr", "add", f"{address}/24", "dev", interface)
        ip("-n", name, "link", "set", interface, "mtu", str(self._mtu), "txqueuelen", "10000", "up")
        ip("-n", name, "link", "set", "lo", "up")
        return device

    def _carry(self) -> None:
        """Takes packets from the devices and delivers them when they are due, until the context ends."""
        hosts = {socket.inet_aton(address): host for host, address in enumerate(self.addresses)}
        free_at = [0.0] * len(hosts)  # the time when a host's line can take the next packet
        waiting: list[tuple[float, int, int, bytes]] = []  # (time of delivery, number, receiver, packet)
        numbers = itertools.count()
        while True:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, target, packet = heapq.heappop(waiting)
                if target not in self._cut:
                    with contextlib.suppress(BlockingIOError):  # a full queue loses a packet
                        os.write(self._devices[target], packet)
            timeout = max(0.0, waiting[0][0] - now) if waiting else None
            readable = select.select([self._end, *self._devices], [], [], timeout)[0]
            if self._end in readable:
                return
            for source, device in enumerate(self._devices):
                for packet in _packets(device) if device in readable else ():
                    target = hosts.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    if target is None or source in self._cut or self._random.random() < self._loss:
                        continue
                    self.sent[source] += len(packet)
                    start = max(free_at[source], time.monotonic())
                    free_at[source] = start + (len(packet) / self._rate if self._rate else 0.0)
                    heapq.heappush(waiting, (free_at[source] + self._delay, next(numbers), target, packet))


def _packets(device: int) -> collections.abc.Iterator[bytes]:
    """The packets that a device has now, up to a limit."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):
            yield os.read(device, 65536)
