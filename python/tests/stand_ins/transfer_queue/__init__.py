from rolldock.transfer_queue import *  # noqa: F403
