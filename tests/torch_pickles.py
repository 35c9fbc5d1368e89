"""Files in the format of torch.save, created without PyTorch."""

import collections
import io
import pickle
import struct
import zipfile

from bert_tf2.weights import tensor_files

Name = collections.namedtuple("Name", "module name")
Call = collections.namedtuple("Call", "name arguments")
Storage = collections.namedtuple("Storage", "arguments")
State = collections.namedtuple("State", "target state")
REBUILD = Name("torch._utils", "_rebuild_tensor_v2")
DTYPES = {"f4": "FloatStorage", "f2": "HalfStorage", "f8": "DoubleStorage", "i8": "LongStorage", "b1": "BoolStorage"}


def pickled(value) -> bytes:
    """The pickle instructions for `value`, in which names are not resolved."""
    if isinstance(value, Name):
        return b"c" + f"{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return pickled(value.name) + pickled(tuple(value.arguments)) + b"R"
    if isinstance(value, Storage):
        return pickled(tuple(value.arguments)) + b"Q"
    if isinstance(value, State):
        return pickled(value.target) + pickled(value.state) + b"b"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(pickled, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(pickled, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(pickled(key) + pickled(item) for key, item in value.items()) + b"u"
    return pickle.dumps(value, 2)[2:-1]


def program(value) -> bytes:
    return b"\x80\x02" + pickled(value) + b"."


def storage(key, count, kind="FloatStorage", *view):
    return Storage(("storage", Name("torch", kind), key, "cpu", count, *view))


def tensor(key, array, *view):
    """The description of a tensor with its own storage."""
    kind = DTYPES[array.dtype.str[1:]]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Call(REBUILD, (storage(key, array.size, kind, *view), 0, array.shape, strides, False, Call(ORDERED, ())))


ORDERED = Name("collections", "OrderedDict")


def zip_bytes(value, storages, compression=zipfile.ZIP_STORED, root="archive", **parts) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr(f"{root}/data.pkl", value if isinstance(value, bytes) else program(value))
        for name, data in {"byteorder": b"little", **parts}.items():
            archive.writestr(f"{root}/{name}", data)
        for key, data in storages.items():
            archive.writestr(f"{root}/data/{key}", data)
    return stream.getvalue()


FACTS = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


def legacy_bytes(value, storages, magic=0x1950A86A20F9469CFC6C, facts=None) -> bytes:
    """`storages`: key -> (number of values, bytes)."""
    pickles = [program(magic), program(1001), program(facts or FACTS)]
    pickles += [value if isinstance(value, bytes) else program(value), program(sorted(storages))]
    return b"".join(pickles) + b"".join(
        struct.pack("<q", count) + data for _, (count, data) in sorted(storages.items())
    )


def both_formats(value, arrays) -> dict[str, bytes]:
    plain = {key: array.tobytes() for key, array in arrays.items()}
    counted = {key: (array.size, array.tobytes()) for key, array in arrays.items()}
    return {"zip": zip_bytes(value, plain), "legacy": legacy_bytes(value, counted)}


FORMATS = ("zip", "legacy")


def open_bytes(tmp_path, data: bytes):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(data)
    return tensor_files.open_tensors(str(path))
