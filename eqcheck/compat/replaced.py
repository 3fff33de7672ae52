"""An attribute that is another one for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a class, module or instance; afterwards it is what it was, or absent again.

    >>> class Owner: ...
    >>> with replaced(Owner, "name", 1):
    ...     Owner.name
    1
    >>> hasattr(Owner, "name")
    False
    """
    before = vars(owner).get(name, _ABSENT)  # as it is stored: a classmethod, not what looking it up returns
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
