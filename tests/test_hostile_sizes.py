"""Files that state huge sizes, or unfold to them: refused or read in seconds, and in little memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import pathlib
import resource
import time

import pytest
from huggingface_folders import CONFIG, make_folder, write_json
from mutations import framed, record_of
from refused import message_of

from bert_tf2.config import BertConfig
from bert_tf2.data import record_index, records
from bert_tf2.finetuning import squad
from bert_tf2.weights import labels, sources

MEGABYTE = 1 << 20


@contextlib.contextmanager
def bounded(megabytes: int, seconds: float = 5.0):
    """Allows so much more memory than there is now: beyond it, whatever asks for memory fails with MemoryError."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    begun = time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + megabytes * MEGABYTE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - begun < seconds


def refusal(call, *arguments, megabytes: int = 300) -> str:
    with bounded(megabytes):
        return message_of(call, *arguments)


def test_the_bound_is_one():
    with pytest.raises(MemoryError), bounded(100):
        bytearray(300 * MEGABYTE)


# JSON

DEEP = "[" * 10_000 + "]" * 10_000


@pytest.mark.parametrize("text", [DEEP, DEEP[:10_000], '{"a": ' * 10_000 + "1" + "}" * 10_000, f'{{"data": {DEEP}}}'])
def test_deep_json(text, tmp_path):
    for name in ("config.json", "label_map.json", "squad.json", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / name).write_text(text)
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text.encode())
    path = str(tmp_path)
    for call, *arguments in (
        (BertConfig.from_json_file, f"{path}/config.json"),
        (labels.read_label_map, f"{path}/label_map.json"),
        (squad.read_squad_examples, f"{path}/squad.json", False),
        (sources.open_weights, path),
    ):
        assert "json: its JSON is nested too deep" in refusal(call, *arguments)
    write_json(tmp_path / "config.json", CONFIG)
    assert "is damaged, or not what" in refusal(sources.open_weights, path)
    make_folder(tmp_path)
    for name in ("tokenizer_config.json", "tokenizer.json"):
        assert f"{name}: its JSON is nested too deep" in refusal(lambda: sources.open_weights(path).vocabulary())
        (tmp_path / name).unlink()


# Records


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 2**63, 2**31 - 1, 2**27])
@pytest.mark.parametrize("packed", [False, True])
def test_a_record_that_claims_to_be_huge(length, packed, tmp_path):
    path = tmp_path / ("records.gz" if packed else "records")
    content = framed(b"good") + record_of(length)
    path.write_bytes(gzip.compress(content) if packed else content)
    message = refusal(record_index.read_index, [str(path)])
    problem = "the file is truncated" if length == 2**27 else "claims to have"
    assert f"record 2: {problem}" in message
    path.write_bytes(gzip.compress(record_of(length)) if packed else record_of(length))
    # TensorFlow's reader would end the process.
    assert f"record 1: {problem}" in refusal(records.read_records, [str(path)], records.PRETRAINING, {}, 2)
    assert f"record 1: {problem}" in str(records.find_fault([str(path)], records.PRETRAINING, {}))


# Weights


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 2**31])
def test_a_safetensors_header_that_claims_to_be_huge(length, tmp_path):
    folder = make_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    assert "is damaged, or not what its name says" in refusal(sources.open_weights, folder)


def test_tensors_that_claim_to_be_huge(tmp_path):
    folder = make_folder(tmp_path)
    for shape, places in (([2**60], [0, 2**62]), ([0, 2**62], [0, 0]), ([1] * 10**5, [0, 4])):
        header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": places}}).encode()
        (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        refusal(lambda: sources.open_weights(folder).get("a"))
