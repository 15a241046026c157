"""Errors of this package."""


class StorageKeyNotFoundError(KeyError):
    """A sample does not have a field, or was cleared."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
