"""The parts of Ray that the import of verl's batches and algorithms needs. verl calls none of them here."""


class ObjectRef:
    """The type of a future, for annotations."""
