"""What verl's batches and algorithms name of Ray when they are imported. They call nothing of it."""


class ObjectRef:
    """The type of a future, for annotations."""
