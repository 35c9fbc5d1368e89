"""Reading as the reference reads, files of the wrong kind, and files that are complete or absent."""

import gzip
import json
import os
import pathlib

import pytest
from refused import message_of, refuses

from bert_tf2 import tokenization
from bert_tf2.config import BertConfig
from bert_tf2.data import records
from bert_tf2.finetuning import ner, squad
from bert_tf2.support import errors, files
from bert_tf2.support.errors import UserError
from bert_tf2.weights import sources
from bert_tf2.weights.task_file import load_label_map, read_label_map


def write(path: pathlib.Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\r\ntwo", ["one", "two"]),
        (b"mid\rdle\n\n", ["middle", ""]),
        ("a\u2028b\x0cc\x85d\x0be\n".encode(), ["a\u2028b\x0cc\x85d\x0be"]),
        (b"end\n\r", ["end"]),
        (b"\xef\xbb\xbfbom\n", ["\ufeffbom"]),
        (b"PK and BZh are letters\n", ["PK and BZh are letters"]),
    ],
)
def test_lines_end_at_lf_only_and_lose_every_cr(tmp_path, data, lines):
    path = write(tmp_path / "text", data)
    assert list(files.read_lines(path)) == lines and files.read_text(path) == data.decode()


def test_names_and_patterns(tmp_path, log_lines):
    for name in ("c1", "a", "c0", "c10", "part[1].txt"):
        write(tmp_path / name, b"")
    found = files.match_files(f"{tmp_path}/c*, {tmp_path}/a,{tmp_path}/a,{tmp_path}/part[1].txt")
    assert [os.path.basename(path) for path in found] == ["c0", "c1", "c10", "a", "a", "part[1].txt"]
    assert [os.path.basename(path) for path in files.match_files(f"{tmp_path}/c[^0]")] == ["c1"]
    for names, word in (("{}/b*", "pattern"), ("{0}/a,{0}/b", "holds: a, c0"), ("{}/gone/b", "no folder")):
        assert word in message_of(files.match_files, names.format(tmp_path))
    refuses("is a folder", files.match_files, str(tmp_path))
    refuses("no file", files.match_files, " , ")
    assert files.match_files(f"{tmp_path}/b,{found[0]}", skip_unmatched=True) == [found[0]]
    assert [line for line in log_lines if f"{tmp_path}/b" in line] == log_lines and len(log_lines) == 1
    message_of(lambda: files.match_files(f"{tmp_path}/b", skip_unmatched=True))  # nothing at all is left


def test_files_appear_together_or_stay_as_they_were(tmp_path):
    one, two = tmp_path / "new" / "one", tmp_path / "new" / "two"
    with files.complete_or_absent(str(one), str(two)) as beside:
        for name in beside:
            pathlib.Path(name).write_text("done")
        assert not one.exists() and not two.exists()
        assert errors.final_name(beside[0]) == str(one) and f".{os.getpid()}." in beside[0]
    for path in (one, tmp_path / "other" / "new" / "file"):
        with pytest.raises(ZeroDivisionError), files.complete_or_absent(str(path)) as (name,):
            pathlib.Path(name).write_text("half")
            raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["new"]
    assert sorted(os.listdir(tmp_path / "new")) == ["one", "two"] and one.read_text() == two.read_text() == "done"
    files.write_text(str(one), "ä\r\nb", durable=True)
    assert one.read_bytes() == b"\xc3\xa4\r\nb" and files.read_text(str(one)) == "ä\r\nb"
    assert str(one) in message_of(files.write_text, str(one), "half \ud83d")


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc here")
def test_a_durable_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """And the folder after that, with the name."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    path = tmp_path / "state.json"
    files.write_json(str(path), {"a": 1})
    assert synced == []
    files.write_json(str(path), {"a": 1}, durable=True)
    first, second = synced
    assert errors.final_name(first) == str(path) != first and second == str(tmp_path)


def test_a_path_with_a_scheme_goes_through_tensorflow(tmp_path):
    path = f"file://{tmp_path}/deep/text"
    files.make_directory(f"file://{tmp_path}/deep")
    files.write_text(path, "one\ntwo\n")
    assert (tmp_path / "deep" / "text").read_text() == "one\ntwo\n"
    assert list(files.read_lines(path)) == ["one", "two"] and files.size(path) == 8
    assert files.match_files(f"file://{tmp_path}/deep/t*") == [path]
    assert files.list_directory(f"file://{tmp_path}/deep") == ["text"]
    with files.open_binary(path, "wb") as stream:
        stream.write(memoryview(b"text"))
    assert (tmp_path / "deep" / "text").read_bytes() == b"text"
    refuses("no such file", files.read_text, f"{path}s")
    assert message_of(files.size, f"{path}s") == f"{path}s: no such file"
    assert message_of(files.size, "nosuch://folder/x").startswith("nosuch://folder/x: cannot be reached")


# Errors


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no /proc here")
@pytest.mark.parametrize("read", [files.read_text, lambda path: [*files.read_lines(path)], files.count_lines])
def test_an_error_amid_reading_or_at_the_end_of_writing_names_the_file(read):
    with pytest.raises(OSError) as caught:
        read("/proc/self/mem")
    assert errors.explain(caught.value).startswith("/proc/self/mem: Input/output error")
    stream = files.open_binary("file:///dev/full", "wb")  # a remote file is written when it is closed
    with pytest.raises(UserError, match=r"^file:///dev/full: .*No space left"), stream:
        stream.write(b"text")


def test_a_remote_path_that_cannot_be_read_is_named(tmp_path):
    path = f"file://{tmp_path}/text"
    files.write_text(path, "one")
    with files.open_binary(path) as stream:
        os.remove(tmp_path / "text")
        assert message_of(stream.seek, 0, os.SEEK_END) == f"{path}: no such file"
    for read in (files.read_text, lambda path: [*files.read_lines(path)]):
        assert message_of(read, f"file://{tmp_path}").startswith(f"file://{tmp_path}: cannot be read: ")
    refuses("https://x/y TensorFlow opens no such address", files.read_text, "https://x/y")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_of_several_files_the_one_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "second").symlink_to("/dev/full")
    first, second = (f"{tmp_path}/{name}" for name in ("first", "second"))
    opened = (files.open_binary(path, "wb") for path in (first, second))
    with pytest.raises(UserError, match=rf"^{second}: .*No space left"), errors.writing(first, second):
        for stream in opened:
            with stream:
                stream.write(b"text")


def test_what_is_in_the_way(tmp_path):
    write(tmp_path / "vocab.txt", b"")
    write(tmp_path / ".hidden", b"")
    found = message_of(files.open_binary, f"{tmp_path}/vocab.tx")
    assert found == f"{tmp_path}/vocab.tx: no such file ({tmp_path} holds: vocab.txt)"
    assert f"({tmp_path}/vocab.txt is a file" in message_of(files.check_there, f"{tmp_path}/vocab.txt/a")
    assert "Is a directory" in message_of(files.read_text, str(tmp_path))
    assert "vocab.txt/below" in message_of(files.make_directory, f"{tmp_path}/vocab.txt/below")
    (tmp_path / "link").symlink_to("gone")
    for call in (files.read_text, files.make_directory):
        assert "link to gone" in message_of(call, f"{tmp_path}/link")


def test_bytes_that_are_not_utf8_name_file_and_line(tmp_path):
    path = write(tmp_path / "text", b"good\nb\xe4d\n")
    lines = files.read_lines(path)
    assert next(lines) == "good"
    for read in (lambda: next(lines), lambda: files.read_text(path)):
        assert message_of(read).startswith(f"{path}, line 2: not UTF-8 text (byte 0xe4)")
    for text, encoding in (("caf\u00e9", "CP1252"), ("\u00e9t\u00e9", "CP1252"), ("\u4e2d\u56fd", "GB18030")):
        other = write(tmp_path / "other", text.encode(encoding))
        assert f"iconv -f {encoding} " in message_of(files.read_text, other)


TEXT = "".join(f"word{number} another\n" for number in range(50))
KINDS = {  # how one begins, and the cure that the message names
    "gzip": (gzip.compress(TEXT.encode()), "gzip -dc < {path} > {path}.unpacked"),
    "UTF-16": (TEXT.encode("utf-16"), "iconv -f UTF-16 -t UTF-8 {path} > {path}.utf8"),
    "UTF-16LE": (TEXT.encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8 {path} > {path}.utf8"),  # without a mark
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "HTML": (b"<!DOCTYPE html><html>sign in</html>", "HTML"),
    "text": (TEXT.encode() + "ö".encode()[:1], "is text"),  # whose last character is cut off
}
READERS = {
    "text": files.read_text,
    "lines": lambda path: list(files.read_lines(path)),
    "vocabulary": tokenization.load_vocab,
    "configuration": BertConfig.from_json_file,
    "SQuAD": lambda path: squad.read_squad_examples(path, True),
    "CoNLL": ner.read_conll,
    "labels": read_label_map,
    "weights": sources.open_weights,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_called_by_its_name(kind, tmp_path):
    data, cure = KINDS[kind]
    path = write(tmp_path / "my file", data)
    cure = cure.format(path=f"'{path}'")
    if kind not in ("HTML", "text"):  # which texts may be
        for read in READERS.values():
            found = message_of(read, path)
            assert found.startswith(f"{path}: is ") and cure in found
        found = str(records.find_fault([path], records.CLASSIFICATION, {}))
        assert found.startswith(f"{path}: is ") and ("is text" if kind == "gzip" else cure) in found
    if kind == "gzip":  # as BioBERT and SciBERT are published
        released = write(tmp_path / "biobert.tar.gz", data)
        assert f"tar -xf {released}" in message_of(sources.open_weights, released)
    for name in ("pytorch_model.bin", "m.keras", "model.safetensors", "x.ckpt.index"):
        other = write(tmp_path / name, data)
        (tmp_path / "config.json").write_text("{}")
        found = message_of(sources.open_weights, other)
        if "configuration" not in found:  # which is looked at first
            assert found.startswith(f"{other}: is ") and cure.replace(path, other).replace("'", "") in found


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (" \n", "empty"),
        ('{"a": 1,\n "b": }', ", line 2, column 7: "),
        ("[" * 100000, "nested"),
        ('{\n"vocab_size": ' + "1" * 5000 + "}", "number"),
        ("[1]", "an object"),
        ("<html><body>404</body></html>", "HTML"),
    ],
)
def test_json_that_cannot_be_read(text, word, tmp_path):
    path = write(tmp_path / "file.json", text.encode())
    found = message_of(files.read_json, path)
    assert found.startswith(path) and word in found


def test_a_byte_order_mark_is_dropped_everywhere_but_in_running_text(tmp_path):
    def marked(name: str, text: str) -> str:
        return write(tmp_path / name, f"\ufeff{text}".encode())

    assert tokenization.load_vocab(marked("vocab.txt", "[PAD]\n[UNK]\n")) == {"[PAD]": 0, "[UNK]": 1}
    config = BertConfig(2, hidden_size=2, num_hidden_layers=2, num_attention_heads=2, intermediate_size=4)
    assert BertConfig.from_json_file(marked("config.json", config.to_json_string())) == config
    questions = {"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 1, "question": "q"}]}]}]}
    assert squad.read_squad_examples(marked("squad.json", json.dumps(questions)), False)[0].qas_id == "1"
    marked("label_map.json", json.dumps({"task": "tsv", "labels": ["a", "b"], "regression": False}))
    assert load_label_map(str(tmp_path)).labels == ("a", "b")
