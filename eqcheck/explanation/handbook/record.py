"""What is said of a kind of fault beside its meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One usual root cause, and where it was reported; ``links`` are ``owner/repository#number`` or addresses.

    >>> Cause("A rollback does nothing.", ("ml-explore/mlx-lm#1109",)).urls
    ('https://github.com/ml-explore/mlx-lm/issues/1109',)
    """

    what: str
    links: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """The links as addresses; the site leads from an issue's address to the pull request of that number."""
        return tuple(
            link if link.startswith("https://") else "https://github.com/" + link.replace("#", "/issues/")
            for link in self.links
        )


@dataclass(frozen=True)
class Explained:
    """A worked example, the usual root causes, those with reports first, and how to mend it; all of it in sentences."""

    example: str
    causes: tuple[Cause, ...]
    fix: str
