"""Files of torch.save in both formats: what is read, what is damaged, and what would run code."""

import os
import pickle
import struct
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
    State,
    Storage,
    both_formats,
    legacy_bytes,
    open_bytes,
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
        (b"(S'true'\nios\nsystem\n.", "os.system"),
        (b"(cbuiltins\neval\nS'1'\no.", "builtins.eval"),
        (b"(ctorch\nFloatStorage\no.", "damaged"),
        (b"ctorch\nFloatStorage\n)\x81.", "damaged"),
        (b"ctorch\nFloatStorage\n)R.", "damaged"),
        (b"ctorch\nFloatStorage\n}X\x01\x00\x00\x00aNsb.", "damaged"),
        (b"\x82\x01.", "damaged"),
        (b"X\x07\x00\x00\x00modulesQ.", "damaged"),
        (program(Storage(("module", Name("torch", "FloatStorage"), "a", "b"))), "damaged"),
        (program({"a": Call(Name("torch._utils", "_rebuild_wrapper_subclass"), ())}), "_rebuild_wrapper_subclass"),
        (program({"a": storage("0", 4, "UntypedStorage")}), "UntypedStorage"),
        (program(Call(Name("collections\x1b[31m", "x"), ())), "\\x1b"),
        (b"Nr\xff\xff\xff\xff.", "damaged"),
    ],
)
def test_instructions_that_no_dictionary_of_tensors_needs(tmp_path, data, part):
    for wrapped in (zip_bytes(data, {}), legacy_bytes(data, {})):
        assert part in message_of(open_bytes, tmp_path, wrapped)


def test_a_pickle_changes_nothing_that_the_next_one_gets(tmp_path):
    state = (None, {"__defaults__": (7,), "func": 8})
    content = {"a": State(REBUILD, state), "b": State(Call(ORDERED, ()), {"x": 1})}
    for wrapped in both_formats(content, {}).values():
        message_of(open_bytes, tmp_path, wrapped)
    test_tensors_of_torch_save(tmp_path, "zip")


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
        "another zip": zip_bytes(described(), plain, **{"b/data.pkl": b""}),
        "no dictionary": zip_bytes([1, 2], plain),
        "no tensors": zip_bytes({"a": 1}, plain),
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
