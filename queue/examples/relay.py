"""Three roles at the queue of a run: a reference model and a critic add columns to rows, and a trainer takes the
rows that have both. Each role is a process of its own that may die at any time and be started again. Needs pyarrow
and nothing else. The recipe of the run has

    [queue]
    listen = "127.0.0.1:7070"
    [queue.tasks]
    ref = { columns = ["rollout_logprobs"] }
    critic = { columns = ["response_ids"] }
    train = { columns = ["response_ids", "advantage", "ref_log_prob", "values"] }

python3 queue/examples/relay.py http://127.0.0.1:7070 ref
python3 queue/examples/relay.py http://127.0.0.1:7070 critic
python3 queue/examples/relay.py http://127.0.0.1:7070 train FILE
"""

import http.client
import json
import os
import sys
import time

import pyarrow as pa
from client import Queue, Refused

PARTITION = "train"
COLUMNS = {
    "ref": ["rollout_logprobs"],
    "critic": ["response_ids"],
    "train": ["prompt_uid", "sample_index", "response_ids", "reward", "advantage", "ref_log_prob", "values"],
}
GROUPS = 2
# The time for which a role tries to reach a run that does not answer.
PATIENCE_S = 60
# The time that a model takes, simulated by a sleep.
WORK_S = float(os.environ.get("RELAY_WORK_S", "0"))


def by_token(name, lists):
    return pa.table({name: pa.array(lists, pa.list_(pa.float32()))})


def ref(rows):
    """Simulates the log-probabilities of a reference model."""
    return by_token("ref_log_prob", [[p / 2 for p in row] for row in rows["rollout_logprobs"].to_pylist()])


def critic(rows):
    """Simulates the values that a critic assigns to each token: here, the number of tokens that follow."""
    return by_token("values", [range(len(row) - 1, -1, -1) for row in rows["response_ids"].to_pylist()])


def train(rows):
    """Simulates a training step: appends the rows to a file."""
    with open(sys.argv[3], "a") as file:
        # The text begins with a line break, because an earlier process may have died in the middle of a line.
        lines = [json.dumps(row) for row in rows.drop_columns(["_handle"]).to_pylist()]
        file.write("\n" + "\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())


ROLES = {"ref": ref, "critic": critic, "train": train}


def compute(role, rows):
    time.sleep(WORK_S)
    return ROLES[role](rows)


def give_back(queue, role):
    """Gives back the rows that an earlier process of this role held, so that no lease has to expire first."""
    inspection = json.loads(queue.call("GET", "/inspect")[1])
    for partition in inspection["partitions"]:
        for lease in partition["leases"]:
            if partition["name"] == PARTITION and role in lease["holders"]:
                queue.lease(PARTITION, f"{lease['name']}-0", "nack")


# ANCHOR: work
def work(queue, role):
    give_up = time.monotonic() + PATIENCE_S
    while True:
        options = {"groups": GROUPS, "columns": COLUMNS[role], "wait_ms": 2_000, "holder": role}
        try:
            lease, rows = queue.take(PARTITION, task=role, **options)
            give_up = time.monotonic() + PATIENCE_S
            if lease is None:
                return  # The run is over, and every row is taken.
            added = compute(role, rows)
            if added is not None:
                # An earlier process may have died after it wrote its columns and before its ack.
                queue.columns(PARTITION, rows["_handle"], added, overwrite="true")
            queue.lease(PARTITION, lease, "ack")
        except Refused as error:
            # Nothing is ready yet, or the lease is gone and the rows come again.
            if error.code not in ("deadline", "lease_gone", "unknown_partition"):
                raise
        except (OSError, http.client.HTTPException):
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)
# ANCHOR_END: work


if __name__ == "__main__":
    queue = Queue(sys.argv[1], os.environ.get("ROLLDOCK_QUEUE_TOKEN"), PATIENCE_S)
    give_back(queue, sys.argv[2])
    work(queue, sys.argv[2])
