"""The error for values that come from the user, and what to do about a missing package."""

__all__ = ["InputError", "how_to_install"]


class InputError(ValueError):
    """A value that came from the user cannot be used.

    The message is one line: it names the value and says what to do. The command line prints it and exits with
    code 2.

    Examples:
        >>> import aipo
        >>> aipo.Gaussian(-1)
        Traceback (most recent call last):
        aipo.errors.InputError: sigma is -1.0; it must be finite and greater than 0
    """


def how_to_install(extra: str) -> str:
    """What brings the packages of an extra to an AIPO that is installed, from a checkout or a wheel."""
    return f"pip install 'aipo[{extra}]'"
