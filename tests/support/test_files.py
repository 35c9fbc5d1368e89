"""Reading as the reference reads, and files that are complete or absent."""

import os
import pathlib
import subprocess
import sys

import pytest

from bert_tf2.support import files
from bert_tf2.support.errors import UserError


def write(path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"mid\rdle\n\n", ["middle", ""]),
        ("a\u2028b\x0cc\x85d\x0be\n".encode(), ["a\u2028b\x0cc\x85d\x0be"]),
        (b"end\n\r", ["end"]),
        (b"\xef\xbb\xbfbom\n", ["\ufeffbom"]),
    ],
)
def test_lines_end_at_lf_only_and_lose_every_cr(tmp_path, data, lines):
    assert list(files.read_lines(write(tmp_path / "text", data))) == lines


def test_bytes_that_are_not_utf8_name_file_and_line(tmp_path):
    path = write(tmp_path / "text", b"good\nb\xe4d\n")
    message = rf"^{path}, line 2: not UTF-8 text \(byte 0xe4\)"
    with pytest.raises(UserError, match=message):
        files.read_text(path)
    lines = files.read_lines(path)
    assert next(lines) == "good"
    with pytest.raises(UserError, match=message):
        next(lines)


def test_text_is_written_and_read_with_its_line_ends(tmp_path):
    path = str(tmp_path / "text")
    files.write_text(path, "ä\r\nb")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xa4\r\nb" and files.read_text(path) == "ä\r\nb"


def test_matches_come_in_the_order_of_the_list_and_globs_sorted(tmp_path):
    for name in ("c1", "a", "c0", "c10"):
        write(tmp_path / name, b"")
    names = f"{tmp_path}/c*, {tmp_path}/a,{tmp_path}/a"
    assert files.match_files(names) == [str(tmp_path / name) for name in ("c0", "c1", "c10", "a", "a")]


def test_a_name_with_the_characters_of_a_pattern_is_found_as_a_name(tmp_path):
    path = write(tmp_path / "part[1].txt", b"")
    assert files.match_files(path) == [path]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("{}/b*", "no file matches this pattern"),
        ("{0}/a,{0}/b", r"b: no such file \(.* holds: a"),
        ("{}/gone/b", "there is no folder .*gone either"),
        ("{}", "is a folder, a file is needed"),
        (" , ", "no file is named in ' , '"),
    ],
)
def test_names_that_match_nothing(tmp_path, names, message):
    write(tmp_path / "a", b"")
    with pytest.raises(UserError, match=message):
        files.match_files(names.format(tmp_path))


def test_unmatched_names_can_be_skipped(tmp_path, log_lines):
    path = write(tmp_path / "a", b"")
    assert files.match_files(f"{tmp_path}/b,{path}", skip_unmatched=True) == [path]
    assert len(log_lines) == 1 and log_lines[0].startswith(f"left out {tmp_path}/b: no such file")
    with pytest.raises(UserError, match="no such file"):  # nothing at all is left
        files.match_files(f"{tmp_path}/b", skip_unmatched=True)


def test_files_appear_together_and_nothing_is_left_beside(tmp_path):
    one, two = tmp_path / "new" / "one", tmp_path / "new" / "two"
    with files.complete_or_absent(str(one), str(two)) as beside:
        for name in beside:
            pathlib.Path(name).write_text("done")
        assert not one.exists() and not two.exists()
    assert sorted(os.listdir(tmp_path / "new")) == ["one", "two"]
    assert one.read_text() == two.read_text() == "done"


def test_a_failure_leaves_the_old_file_and_no_rest(tmp_path):
    write(tmp_path / "one", b"old")
    with pytest.raises(ZeroDivisionError), files.complete_or_absent(str(tmp_path / "one")) as (beside,):
        pathlib.Path(beside).write_text("half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["one"]
    assert (tmp_path / "one").read_bytes() == b"old"


@pytest.mark.skipif(not os.path.exists("/proc/self/fd/1"), reason="no /proc here")
def test_the_standard_output_is_written_to_and_not_replaced(tmp_path):
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    program = f"from bert_tf2.support import files; files.write_text('{tmp_path}/stdout', 'text')"
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "text" and sorted(os.listdir(tmp_path)) == ["out", "stdout"]
    assert os.path.islink(tmp_path / "stdout")


def test_a_missing_file_shows_what_is_there(tmp_path):
    write(tmp_path / "vocab.txt", b"")
    write(tmp_path / ".hidden", b"")
    with pytest.raises(UserError) as caught:
        files.open_binary(str(tmp_path / "vocab.tx"))
    assert str(caught.value) == f"{tmp_path}/vocab.tx: no such file ({tmp_path} holds: vocab.txt)"


def test_a_folder_in_the_way_of_a_file_and_a_file_in_the_way_of_a_folder(tmp_path):
    with pytest.raises(UserError, match="Is a directory"):
        files.read_text(str(tmp_path))
    write(tmp_path / "file", b"")
    with pytest.raises(UserError, match=r"cannot make the folder .*file/below"):
        files.make_directory(str(tmp_path / "file" / "below"))


def test_list_directory_is_sorted_and_empty_where_there_is_none(tmp_path):
    for name in "ba":
        write(tmp_path / name, b"")
    assert files.list_directory(str(tmp_path)) == ["a", "b"]
    assert files.list_directory(str(tmp_path / "none")) == []


def test_a_path_with_a_scheme_goes_through_tensorflow(tmp_path):
    path = f"file://{tmp_path}/deep/text"
    files.make_directory(f"file://{tmp_path}/deep")
    files.write_text(path, "one\ntwo\n")
    assert (tmp_path / "deep" / "text").read_text() == "one\ntwo\n"
    assert list(files.read_lines(path)) == ["one", "two"]
    assert files.match_files(f"file://{tmp_path}/deep/t*") == [path]
    with pytest.raises(UserError, match="no such file"):
        files.read_text(path + "s")
    for name in (path + "s", "nosuch://folder/x"):
        with pytest.raises(UserError, match=rf"^{name}: cannot be reached: .*\Z"):
            files.size(name)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_remote_file_that_cannot_be_written(tmp_path):
    """An object store writes all of the file when it is closed, and says only then what is wrong."""
    stream = files.open_binary("file:///dev/full", "wb")
    with pytest.raises(UserError, match=r"^file:///dev/full: cannot be written: .*No space left"), stream:
        stream.write(b"text")
    path = f"file://{tmp_path}/x"
    with files.open_binary(path, "wb") as stream:
        stream.write(memoryview(b"text"))
    assert (tmp_path / "x").read_bytes() == b"text"
