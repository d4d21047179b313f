"""A command line to be pasted into a shell, whatever the files are called."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

__all__ = ["command_line"]


def command_line(words: Iterable[str | Path]) -> str:
    """`aipo` and these words, quoted. A `Path` is a file or folder, which may begin with a dash.

    Examples:
        >>> print(command_line(["restore", Path("-my photo.png"), "--task", "denoise"]))
        aipo restore './-my photo.png' --task denoise
    """
    return " ".join(["aipo", *(_quoted(_not_an_option(word)) for word in words)])


def _not_an_option(word: str | Path) -> str:
    return f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word)


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    # As it is, a control character in a report or a terminal would be lost, or do something there.
    return "$'" + "".join(_escaped(character) for character in word) + "'"


def _escaped(character: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    # Python puts a byte of a name that is not Unicode between U+DC80 and U+DCFF.
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))
