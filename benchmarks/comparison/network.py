"""Network namespaces: one of its own for a run, whose traffic can then be counted, and two "hosts" with a throttled
link."""

import contextlib
import dataclasses
import os
import shutil
import subprocess

ADDRESSES = ("10.231.78.1", "10.231.78.2")


class NotPermitted(Exception):
    """Says what is missing."""


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"network namespaces cannot be made here: ip {' '.join(arguments)}: {done.stderr.strip()}")


def throttle(name, device, mbit):
    limit = ["rate", f"{mbit}mbit", "burst", "128kb", "latency", "100ms"]
    command = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", *limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"a link cannot be throttled here: tc: {done.stderr.strip()}")


def check_tools(*names):
    if os.geteuid() != 0:
        raise NotPermitted("network namespaces need root")
    for name in names:
        if shutil.which(name) is None:
            raise NotPermitted(f"network namespaces need {name}, of Debian's package iproute2")


@contextlib.contextmanager
def namespaces(names):
    """Each with a loopback of its own."""
    check_tools("ip", "tc")
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the ranks of a run are."""

    ranks: int
    namespaces: tuple = ()  # the name of each rank's network namespace; empty: all are in the machine's
    variables: tuple = ()  # of each rank, dictionaries; empty: none
    address: str = "127.0.0.1"  # where rank 0 is met
    watched: bool = False  # whether the memory of all ranks together is measured, not their time
    apart: bool = False  # whether each rank is a job of one process, beside the others but with nothing to do with them

    @property
    def counted(self):
        """Whether the network's counters count this run and nothing else."""
        return bool(self.namespaces)

    def variables_of(self, rank, port):
        """As torchrun sets them. The ranks of a namespace are a host. port: the first of as many as there are ranks."""
        if self.apart:
            return self.part(rank, rank + 1).variables_of(0, port + rank)
        members = [other for other in range(self.ranks) if self.namespace_of(other) == self.namespace_of(rank)]
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(members.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(members)),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
            **(self.variables[rank] if self.variables else {}),
        }

    def namespace_of(self, rank):
        return self.namespaces[rank] if self.namespaces else None

    def prefix_of(self, rank):
        """Of the rank's command."""
        name = self.namespace_of(rank)
        return ["ip", "netns", "exec", name] if name else []

    def of(self, ranks):
        """The place of the first ones only, which belong together."""
        return self.part(0, ranks)

    def part(self, begin, end):
        """The place of these ranks only, which belong together."""
        return dataclasses.replace(
            self,
            ranks=end - begin,
            namespaces=self.namespaces[begin:end],
            variables=self.variables[begin:end],
            apart=False,
        )

    def first_ranks(self):
        """One of each namespace."""
        return [self.namespaces.index(name) for name in dict.fromkeys(self.namespaces)]


@contextlib.contextmanager
def alone(ranks):
    """All ranks in a namespace of their own, or where that is not permitted in the machine's, where traffic of others
    counts."""
    name = f"fsdp-compare-{os.getpid()}"
    try:
        with namespaces([name]):
            yield Place(ranks, (name,) * ranks)
    except NotPermitted:
        yield Place(ranks)


@contextlib.contextmanager
def two_hosts(ranks, mbit):
    """The first half of the ranks on one "host", the others on the other; each sends at most `mbit` Mbit/s to the
    other."""
    names = [f"fsdp-compare-{os.getpid()}-{host}" for host in range(2)]
    with namespaces(names):
        ip("link", "add", "cmp0", "netns", names[0], "type", "veth", "peer", "name", "cmp1", "netns", names[1])
        for host, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{ADDRESSES[host]}/30", "dev", f"cmp{host}")
            ip("-n", name, "link", "set", f"cmp{host}", "up")
            throttle(name, f"cmp{host}", mbit)
        of_rank = [rank * 2 // ranks for rank in range(ranks)]
        yield Place(
            ranks,
            tuple(names[host] for host in of_rank),
            tuple({"GLOO_SOCKET_IFNAME": f"cmp{host}"} for host in of_rank),
            ADDRESSES[0],
        )
