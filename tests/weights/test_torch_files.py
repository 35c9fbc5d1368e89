"""Files of torch.save in both formats: what is read, what is damaged, and what is meant to do harm."""

import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from refused import message_of
from torch_pickles import (
    FACTS,
    FORMATS,
    ORDERED,
    REBUILD,
    Call,
    Name,
    Storage,
    both_formats,
    legacy_bytes,
    open_bytes,
    pickled,
    program,
    storage,
    tensor,
    zip_bytes,
)


@pytest.mark.parametrize("kind", FORMATS)
def test_tensors_of_torch_save(tmp_path, kind):
    random = np.random.default_rng(0)
    arrays = {
        "0": random.normal(size=(3, 5)).astype(np.float32),
        "1": random.normal(size=6).astype(np.float16),
        "2": np.arange(4),
        "3": random.normal(size=(2, 2)),
        "4": np.array([True, False]),
    }
    named = dict(zip("abcde", arrays, strict=True))
    content = {name: tensor(key, arrays[key]) for name, key in named.items()}
    shared = storage("0", 15)
    content["transposed"] = Call(REBUILD, (shared, 0, (5, 3), (1, 5), False, Call(ORDERED, ())))
    content["part"] = Call(Name("torch._utils", "_rebuild_tensor"), (shared, 6, (2, 3), (5, 1)))
    content["parameter"] = Call(Name("torch._utils", "_rebuild_parameter"), (tensor("3", arrays["3"]), True, {}))
    content["number"] = 3
    content["of no axis"] = Call(REBUILD, (shared, 4, (), (), False, Call(ORDERED, ())))
    file = open_bytes(tmp_path, both_formats(content, arrays)[kind])
    assert set(file.tensors) == {*content} - {"number"}
    for name, key in named.items():
        np.testing.assert_array_equal(file.read(name), arrays[key].astype(np.float32) if name in "abd" else arrays[key])
    np.testing.assert_array_equal(file.read("transposed"), arrays["0"].T)
    np.testing.assert_array_equal(file.read("part"), arrays["0"][1:3, 1:4])
    np.testing.assert_array_equal(file.read("parameter"), arrays["3"].astype(np.float32))
    assert file.read("of no axis") == arrays["0"].flat[4]


def test_a_part_of_an_old_storage(tmp_path):
    """The oldest files describe what lies within another storage by that one's key, a first number and a count."""
    numbers = np.arange(10, dtype=np.float32)
    part = storage("0", 10, "FloatStorage", ("view", 4, 5))
    content = {"a": Call(Name("torch._utils", "_rebuild_tensor"), (part, 1, (4,), (1,)))}
    file = open_bytes(tmp_path, legacy_bytes(content, {"0": (10, numbers.tobytes())}))
    np.testing.assert_array_equal(file.read("a"), numbers[5:9])


class Malicious:
    """Its pickle makes the file `made`."""

    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return os.system, (f"touch {self.made}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [*FORMATS, "no format"])
def test_pickles_that_call_something_are_not_run(tmp_path, kind, protocol):
    made = tmp_path / "made"
    data = pickle.dumps({"a": Malicious(made)}, protocol)
    pickle.loads(data)
    assert made.exists()  # this is what would happen
    made.unlink()
    wrapped = {"zip": zip_bytes(data, {}), "legacy": legacy_bytes(data, {}), "no format": data}[kind]
    message = message_of(open_bytes, tmp_path, wrapped)
    assert f"{os.system.__module__}.system" in message and "needs code to be run" in message
    assert not made.exists()


@pytest.mark.parametrize(
    "data, part",
    [
        (b"(S'true'\nios\nsystem\n.", "INST"),
        (b"(cbuiltins\neval\nS'1'\no.", "builtins.eval"),
        (b"(ctorch\nFloatStorage\no.", "OBJ"),
        (b"ctorch\nFloatStorage\n)\x81.", "NEWOBJ"),
        (b"ctorch\nFloatStorage\n)R.", "calls something"),
        (b"ctorch\nFloatStorage\n}b.", "state of an object"),
        (b"\x82\x01.", "EXT1"),
        (b"X\x07\x00\x00\x00modulesQ.", "pytorch_model.bin"),
        (program(Storage(("module", Name("torch", "FloatStorage"), "a", "b", 1))), "no storage"),
        (program({"a": Call(Name("torch._utils", "_rebuild_wrapper_subclass"), ())}), "_rebuild_wrapper_subclass"),
        (program({"a": storage("0", 4, "UntypedStorage")}), "UntypedStorage"),
        (program(Call(Name("collections\x1b[31m", "x"), ())), "\\x1b"),
    ],
)
def test_instructions_that_no_dictionary_of_tensors_needs(tmp_path, data, part):
    for wrapped in (zip_bytes(data, {}), legacy_bytes(data, {})):
        assert part in message_of(open_bytes, tmp_path, wrapped)


FOUR = np.arange(4, dtype=np.float32)


def described(offset=0, shape=(4,), strides=(1,), count=4, key="0"):
    return {"a": Call(REBUILD, (storage(key, count), offset, shape, strides, False, {}))}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1},
        {"offset": -1},
        {"shape": (5,)},
        {"strides": (2,)},
        {"strides": (-1,)},
        {"shape": (1 << 40, 1 << 20), "strides": (0, 0)},
        {"shape": (1 << 40,), "count": 1 << 41},
        {"shape": (1 << 70,)},
        {"shape": ("x",)},
        {"shape": (1,) * 100_000, "strides": (1,) * 100_000},
        {"shape": (4, 1)},
        {"key": "1"},
        {"key": "../0"},
        {"key": 0},
        {"count": 5},
        {"count": None},
    ],
)
def test_tensors_outside_of_the_file(tmp_path, kind, changes):
    """Nothing is set aside for them: these sizes would end the program."""
    message = message_of(open_bytes, tmp_path, both_formats(described(**changes), {"0": FOUR})[kind])
    assert "damaged" in message
    assert open_bytes(tmp_path, both_formats(described(), {"0": FOUR})[kind]).read("a").tolist() == [0, 1, 2, 3]


def damaged_files() -> dict[str, bytes]:
    good = both_formats(described(), {"0": FOUR})
    plain = {"0": FOUR.tobytes()}
    return {
        "nothing": b"",
        "a text": b"hello world",
        "a zip cut off": good["zip"][:-30],
        "an old file cut off": good["legacy"][:-3],
        "an old file without numbers": good["legacy"][:-20],
        "another magic number": legacy_bytes(described(), {}, magic=7),
        "the order of bytes": legacy_bytes(described(), {}, facts={**FACTS, "little_endian": False}),
        "the order of bytes of a zip": zip_bytes(described(), plain, byteorder=b"big"),
        "compressed": zip_bytes(described(), plain, zipfile.ZIP_DEFLATED),
        "another zip": zip_bytes(described(), plain, root="a/b"),
        "no dictionary": zip_bytes([1, 2], plain),
        "no tensors": zip_bytes({"a": 1}, plain),
        "deep": zip_bytes(b"(" * 100_000 + b"t" * 100_000 + b".", plain),
        "a deep key": zip_bytes(b"}" + b")" + b"\x85" * 100_000 + b"K\x01s.", plain),
        "a long pickle": zip_bytes(b"N0" * (3 << 20), plain),
        "a long name": legacy_bytes(b"\x8d" + struct.pack("<Q", 1 << 60) + b".", {}),
        "a negative count": legacy_bytes(described(), {"0": (-4, FOUR.tobytes())}),
        "a large count": legacy_bytes(described(), {"0": (1 << 60, FOUR.tobytes())}),
    }


@pytest.mark.parametrize("what", damaged_files())
def test_damaged_files_of_torch_save(tmp_path, what):
    assert message_of(open_bytes, tmp_path, damaged_files()[what]).startswith(str(tmp_path / "pytorch_model.bin"))


def test_a_changed_number_in_a_zip_is_found(tmp_path):
    numbers = np.arange(100, dtype=np.float32)
    good = zip_bytes(described(shape=(100,), count=100), {"0": numbers.tobytes()})
    place = good.index(numbers.tobytes()) + 77
    file = open_bytes(tmp_path, good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    message = message_of(file.read, "a")
    assert "damaged at a" in message and "checksum" in message


# Pickles that are meant to use up memory, time or the stack.


def _repeated(name: Name, kept: bytes, used: bytes) -> bytes:
    """Puts a name at 1 in the memo and what `kept` makes at 0, and does `used` as often as a pickle may be long."""
    head = b"(" + pickled(name) + b"q\x01" + kept + b"q\x00"
    return head + used * ((1_000_000 - len(head)) // len(used)) + b"t."


_TWICE = b")" + b"q\x00h\x00\x86" * 100  # a tuple that holds a tuple twice, and so on
_PAIRS = b"](" + b"".join(b"M" + struct.pack("<H", key) + b"N\x86" for key in range(60_000)) + b"e"
_LONG_TUPLE = b"(" + b"N" * 200_000 + b"t"
_NAMED = b"X\x0c\x00\x00\x00"
HOSTILE = {
    "a place in the memo": b"Nr\xff\xff\xff\xff.",
    "a place in the memo, as text": b"Np" + b"9" * 4000 + b"\n.",
    "bytes of a number": b"\x8b\xff\xff\xff\x7f\x01.",
    "bytes of a text": b"X\xff\xff\xff\xffa.",
    "bytes of a long text": b"\x8d" + struct.pack("<Q", 1 << 62) + b"a.",
    "bytes of an old text": b"T\xff\xff\xff\x7fa.",
    "bytes of bytes": b"\x8e" + struct.pack("<Q", 1 << 40) + b"a.",
    "bytes of a bytearray": b"\x96" + struct.pack("<Q", 1 << 40) + b"a.",
    "bytes of a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    "digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "a number as a name": b"}\x8b" + struct.pack("<i", 9**6) + b"\x7f" * 9**6 + pickled(tensor("0", FOUR)) + b"s.",
    "marks": b"(" * 1_000_000,
    "lists": b"]" * 1_000_000 + b".",
    "lists in lists": b"]" * 200_000 + b"a" * 199_999 + b".",
    "dictionaries in dictionaries": b"}K\x00" * 100_000 + b"N" + b"s" * 100_000 + b".",
    "tuples in tuples": b")" + b"\x85" * 300_000 + b".",
    "tuples in tuples as a key": b"})" + b"\x85" * 300_000 + b"Ns.",
    "tuples of the same": b"}" + _TWICE + b"Ns.",
    "tuples of the same in an old dictionary": b"(" + _TWICE + b"Nd.",
    "tuples of the same in an ordered one": pickled(ORDERED) + b"]" + _TWICE + b"N\x86a\x85R.",
    "a long list of pairs": _repeated(ORDERED, _PAIRS, b"h\x01h\x00\x85R"),
    "a long pair": _repeated(ORDERED, _LONG_TUPLE, b"h\x01]h\x00a\x85R"),
    "long strides": _repeated(REBUILD, _LONG_TUPLE, b"h\x01(" + pickled(storage("0", 4)) + b"K\x00K\x00\x85h\x00tR"),
    "long arguments": _repeated(REBUILD, _LONG_TUPLE, b"h\x01h\x00R"),
    "a long storage": _repeated(REBUILD, _LONG_TUPLE, b"h\x00Q"),
    "a shape of tuples": program({"a": Call(REBUILD, (storage("0", 4), 0, ((1,) * 99,) * 30, (1,) * 30))}),
    "pairs that are a number": pickled(ORDERED) + b"K\x05\x85R.",
    "pairs that are a text": pickled(ORDERED) + b"X\x02\x00\x00\x00ab\x85R.",
    "pairs that hold themselves": pickled(ORDERED) + b"]q\x00h\x00a\x85R.",
    "a tensor of nothing": pickled(REBUILD) + b")R.",
    "a tensor of a dictionary": pickled(REBUILD) + b"}R.",
    "a parameter of nothing": pickled(Name("torch._utils", "_rebuild_parameter")) + b")R.",
    "a function as a state": pickled(REBUILD) + b"N}" + _NAMED + b"__defaults__)s\x86b.",
}
_READ_ALL = """
import resource, sys
from bert_tf2.weights import torch_files
from bert_tf2.support.errors import UserError
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    print(path, flush=True)
    with open(path, "rb") as stream:
        size = stream.seek(0, 2)
        try:
            print(sorted(torch_files.read_layout(stream, size, path)[0]))
        except UserError as error:
            print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_files_that_are_meant_to_do_harm(tmp_path, kind):
    """Each of them is refused in one line, in a process that may have 3 GB of addresses and takes far less memory."""
    for number, data in enumerate(HOSTILE.values()):
        assert len(data) <= 1 << 20
        wrapped = {"zip": zip_bytes(data, {"0": bytes(16)}), "legacy": legacy_bytes(data, {"0": (4, bytes(16))})}
        (tmp_path / str(number)).write_bytes(wrapped[kind])
    paths = [str(tmp_path / str(number)) for number in range(len(HOSTILE))]
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALL, *paths], capture_output=True, text=True, timeout=300, check=False
    )
    *lines, megabytes = done.stdout.splitlines() or [""]
    reached = [*HOSTILE][(len(lines) - 1) // 2]
    assert done.returncode == 0, f"ended at {reached}: {done.stderr[-500:]}"
    assert [line for line in lines[::2] if line not in paths] == []
    assert [line for line in lines[1::2] if not line.startswith(str(tmp_path))] == []
    assert int(megabytes) < 400
