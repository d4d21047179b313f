"""Files are written whole or not at all, and places that cannot be written are named."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import aipo.files
from aipo.errors import InputError
from aipo.files import FolderLock, ensure_folder, fitting_stem, write_atomically


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


def test_a_name_that_is_too_long_is_named(tmp_path):
    with pytest.raises(InputError, match="the name is too long"):
        write_atomically(tmp_path / ("n" * 300), b"")
    assert os.listdir(tmp_path) == []


# --- what a killed process leaves ---


def test_temporaries_of_killed_processes_are_cleared_away(tmp_path):
    names = [".aipo-0123456789abcdef.tmp", ".aipo-ffffffffffffffff.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    ensure_folder(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_temporary_that_is_being_written_stays(tmp_path):
    """Also if it was opened by another process: that one has it locked."""

    def write(file):
        file.write(b"half")
        file.flush()
        ensure_folder(tmp_path)
        script = f"from aipo.files import ensure_folder; ensure_folder({str(tmp_path)!r})"
        subprocess.run([sys.executable, "-c", script], check=True)
        (temporary,) = os.listdir(tmp_path)
        assert temporary.startswith(".aipo-")
        file.write(b" and half")

    write_atomically(tmp_path / "a", write)
    assert (tmp_path / "a").read_bytes() == b"half and half"


def test_a_temporary_is_in_use_until_it_has_its_name(tmp_path, monkeypatch):
    """Between the last byte and the new name, another process may look for leftovers."""
    replace = os.replace

    def look_first(source, target):
        ensure_folder(tmp_path)
        replace(source, target)

    monkeypatch.setattr(os, "replace", look_first)
    write_atomically(tmp_path / "a", b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"


@pytest.mark.parametrize(
    "name",
    [".aipo-notes.tmp", ".aipo-0123456789abcdeX.tmp", "aipo-0123456789abcdef.tmp", "x.aipo-0123456789abcdef.tmp"],
)
def test_what_is_not_a_temporary_of_ours_stays(tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    (tmp_path / ".aipo-0123456789abcde0.tmp").mkdir()
    (tmp_path / ".aipo-0123456789abcde1.tmp").symlink_to(tmp_path / name)
    os.mkfifo(tmp_path / ".aipo-0123456789abcde2.tmp")
    ensure_folder(tmp_path)
    assert len(os.listdir(tmp_path)) == 4
    assert (tmp_path / name).read_bytes() == b"mine"


# --- one writer at a time ---


def test_only_one_has_the_lock(tmp_path):
    folder = tmp_path / "new" / "out"
    with FolderLock(folder) as mine:
        mine.acquire()
        mine.acquire()
        with FolderLock(folder) as other, pytest.raises(InputError) as caught:
            other.acquire()
        script = f"from aipo.files import FolderLock\nFolderLock({str(folder)!r}).acquire()"
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert result.returncode == 1
    expected = f"process {os.getpid()} is writing to the folder {folder}; wait until it has finished, or choose another"
    assert str(caught.value).startswith(expected)
    assert expected in result.stderr
    assert os.listdir(folder) == []
    with FolderLock(folder) as other:
        other.acquire()


def test_a_killed_process_has_no_lock(tmp_path):
    script = f"import os, signal\nfrom aipo.files import FolderLock\nFolderLock({str(tmp_path)!r}).acquire()\n"
    script += "os.kill(os.getpid(), signal.SIGKILL)"
    result = subprocess.run([sys.executable, "-c", script])
    assert result.returncode == -9
    assert os.listdir(tmp_path) == [".aipo-lock"]
    with FolderLock(tmp_path) as lock:
        lock.acquire()
        assert (tmp_path / ".aipo-lock").read_text() == str(os.getpid())
    assert os.listdir(tmp_path) == []


def test_the_lock_is_nobodys_file_but_ours(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".aipo-lock").symlink_to(tmp_path / "mine")
    with FolderLock(tmp_path) as lock, pytest.raises(InputError, match="cannot write"):
        lock.acquire()
    assert (tmp_path / "mine").read_text() == "mine"


def test_never_two_at_once(tmp_path):
    """Many take the lock and give it back, while others have just opened a file that is about to be removed."""
    inside, most, refused = [], [], []

    def work():
        for _ in range(300):
            with FolderLock(tmp_path) as lock:
                try:
                    lock.acquire()
                except InputError:
                    refused.append(1)
                    continue
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0002)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert refused, "they never met"


def test_without_locks_everything_else_works(tmp_path, monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(aipo.files, "fcntl", None)
    (tmp_path / ".aipo-0123456789abcdef.tmp").write_bytes(b"perhaps in use")
    with FolderLock(tmp_path) as lock, FolderLock(tmp_path) as other:
        lock.acquire()
        other.acquire()
        write_atomically(tmp_path / "a", b"abc")
    assert sorted(os.listdir(tmp_path)) == [".aipo-0123456789abcdef.tmp", "a"]


def test_a_drive_without_locks_is_like_that(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(aipo.files.fcntl, "flock", refuse)
    with FolderLock(tmp_path) as lock:
        lock.acquire()
        write_atomically(tmp_path / "a", b"abc")
    assert os.listdir(tmp_path) == ["a"]


def test_a_drive_on_which_no_file_is_itself_is_like_that(tmp_path, monkeypatch):
    """Some network drives number their files anew at every look."""
    monkeypatch.setattr(os.path, "samestat", lambda a, b: False)
    with FolderLock(tmp_path) as lock:
        lock.acquire()
        write_atomically(tmp_path / "a", b"abc")
    assert "a" in os.listdir(tmp_path)
    assert not list(tmp_path.glob("*.tmp"))


# --- names ---

ENDING = ".restored.png"


@pytest.mark.parametrize("character", ["n", "é", "名", "🙂", "नि", "\udcff"])
@pytest.mark.parametrize("length", [1, 60, 61, 62, 121, 243, 255])
def test_a_name_always_fits(tmp_path, character, length):
    stem = character * length
    short = fitting_stem(stem, ENDING, tmp_path)
    assert len(os.fsencode(short + ENDING)) <= 255
    write_atomically(tmp_path / (short + ENDING), b"")
    fits = len(os.fsencode(stem + ENDING)) <= 255
    assert (short == stem) == fits
    assert fits or stem.startswith(short[:-13])  # cut between two characters
    assert fitting_stem(stem, ENDING, tmp_path / "not" / "there" / "yet") == short


def test_long_names_that_begin_alike_stay_apart(tmp_path):
    names = {fitting_stem("n" * 240 + end, ENDING, tmp_path) for end in ("aaa", "aab", "aaaa", "é")}
    assert len(names) == 4


def test_a_file_system_with_shorter_names(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pathconf", lambda path, name: 143)  # eCryptfs
    assert len(fitting_stem("n" * 200, ENDING, tmp_path) + ENDING) == 143
