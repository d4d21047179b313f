"""The error for values that come from the user."""

__all__ = ["InputError"]


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
