"""Files are written whole or not at all, and places that cannot be written are named."""

import os
from pathlib import Path

import pytest

from aipo.errors import InputError
from aipo.files import ensure_folder, write_atomically


def test_writes_bytes_and_what_a_callback_writes(tmp_path):
    write_atomically(tmp_path / "a", b"abc")
    write_atomically(tmp_path / "b", lambda file: file.write(b"xyz"))
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert (tmp_path / "b").read_bytes() == b"xyz"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_replaces_an_existing_file(tmp_path):
    (tmp_path / "a").write_bytes(b"a longer old content")
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_new_files_get_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    write_atomically(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    target = tmp_path / "a"
    target.write_bytes(b"old")

    def write_half(file):
        file.write(b"ne")
        raise failure

    with pytest.raises(failure):
        write_atomically(target, write_half)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_failing_rename_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "a"
    target.write_bytes(b"old")

    def refuse(source, destination):
        assert Path(source).parent == tmp_path, "renaming is only atomic within one folder"
        raise OSError("disk gone")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk gone"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["folder", "missing/a", "file/a"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught:
        write_atomically(tmp_path / name, b"")
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ensure_folder_creates_parents_and_accepts_what_exists(tmp_path):
    folder = tmp_path / "a" / "b"
    assert ensure_folder(folder) == folder
    assert ensure_folder(str(folder)) == folder
    assert folder.is_dir()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_ensure_folder_names_what_is_in_the_way(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught:
        ensure_folder(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ensure_folder_refuses_a_folder_it_may_not_write_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(InputError, match="permission denied"):
        ensure_folder(tmp_path)
