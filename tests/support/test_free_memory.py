"""The memory that a process can still get: of the machine, of a container, of its own address space."""

import os

import pytest
from refused import message_of

from bert_tf2.support import free_memory


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_memory_of_a_container_is_its_limit(tmp_path):
    assert free_memory.available_bytes(str(tmp_path)) is None
    write(tmp_path / "proc/meminfo", "MemTotal:  9000000 kB\nMemAvailable:  4000000 kB\n")
    assert free_memory.available_bytes(str(tmp_path)) == 4_096_000_000
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "1000000000\n")
    assert free_memory.available_bytes(str(tmp_path)) == 4_096_000_000
    write(tmp_path / "sys/fs/cgroup/memory.max", "3000000000\n")
    write(tmp_path / "sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 200000000\n")
    assert free_memory.available_bytes(str(tmp_path)) == 2_200_000_000


def test_the_memory_of_a_process_is_its_limit(tmp_path, monkeypatch):
    write(tmp_path / "proc/meminfo", "MemAvailable:  9000000 kB\nSwapFree: 1000000 kB\n")
    write(tmp_path / "proc/self/statm", "500000 100000 2000 1 0 3000 0\n")
    page = os.sysconf("SC_PAGE_SIZE")
    assert free_memory.own_bytes(str(tmp_path)) == 100_000 * page
    assert free_memory.available_bytes(str(tmp_path), swap=True) == 10_240_000_000
    monkeypatch.setattr(free_memory, "address_limit", lambda: 500_000 * page + 1_400_000_000)
    assert free_memory.available_bytes(str(tmp_path)) == pytest.approx(1e9)
    monkeypatch.setattr(free_memory, "address_limit", lambda: 500_000 * page)
    assert free_memory.available_bytes(str(tmp_path)) == 0.0


def test_a_limit_below_what_tensorflow_needs(monkeypatch):
    for limit, refused in ((None, False), (2**40, False), (2_560_000_000, True)):
        monkeypatch.setattr(free_memory, "address_limit", lambda limit=limit: limit)
        if refused:
            assert "2.6 GB of address space (ulimit -v), and" in message_of(free_memory.check_tensorflow_starts)
        else:
            free_memory.check_tensorflow_starts()
