"""A trainer: takes whole steps by lease, renews the lease while it trains, acks, and announces its new version.
Needs numpy and pyarrow. The tokens of the run, if it has any, are ROLLDOCK_QUEUE_TOKEN and ROLLDOCK_POLICY_TOKEN."""
import argparse, json, os, sys, threading, time, urllib.error, urllib.request
import numpy as np, pyarrow as pa, pyarrow.compute as pc

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--queue", default="http://127.0.0.1:7070", help="queue.listen of the recipe")
parser.add_argument("--policy", default="http://127.0.0.1:7401", help="policy.listen of the recipe")
parser.add_argument("--groups", type=int, required=True, help="rollout.train_batch_size of the recipe")
parser.add_argument("--weights", help="where servers find a version, for example /mnt/step-{version}")
parser.add_argument("--state", help="the checkpoint, from which a restarted trainer of this run continues")
parser.add_argument("--patience", type=int, default=600, help="seconds to wait for a run that is interrupted or killed")
args = parser.parse_args()

def call(service, path, body=None):
    token = os.environ.get(f"ROLLDOCK_{service.upper()}_TOKEN", "")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(vars(args)[service] + path, data, {"authorization": f"Bearer {token}"})
    for second in range(args.patience + 1):
        try:
            return urllib.request.urlopen(request, timeout=120)
        except OSError as error:  # 503, or no answer: the run is ending, or waits for `rolldock run --resume`.
            if getattr(error, "code", 503) != 503 or second == args.patience: raise
            if second == 0: print(f"{request.full_url}: {error}; waiting for the run", file=sys.stderr, flush=True)
            time.sleep(1)

def train(rows):  # Your optimizer goes here. This one computes the mean weight of a token in the policy gradient.
    mask, advantage = rows["response_mask"].combine_chunks(), rows["advantage"].to_numpy()
    weights = np.repeat(advantage, mask.value_lengths().to_numpy()) * mask.flatten().to_numpy()
    return weights.sum() / max(mask.flatten().to_numpy().sum(), 1)

def call_of_lease(lease, name):
    try:
        call("queue", f"{lease}/{name}", {})
    except urllib.error.HTTPError as error:
        if error.code != 410: raise  # 410: the lease has ended. Its rows are delivered again, and are then left out.

def renew(lease, done):
    while not done.wait(20): call_of_lease(lease, "renew")

def save(state):
    with open(args.state + ".new", "w") as file: json.dump(state, file)
    os.replace(args.state + ".new", args.state)

state = json.load(open(args.state)) if args.state and os.path.exists(args.state) else {"version": 0, "groups": []}
take = {"task": "train", "groups": args.groups, "at_least": args.groups, "wait_ms": 10_000}
while True:
    announced = json.load(call("policy", "/v1/policy"))["announced"]
    if announced < (version := state["version"]):  # The version is new, or a killed run or trainer has lost it.
        path = args.weights and args.weights.format(version=version)
        call("policy", "/v1/policy/announce", {"version": version, "label": f"step-{version}", "path": path})
    try:
        answer = call("queue", "/v1/partitions/train/take", take)
    except urllib.error.HTTPError as error:
        if error.code != 408: raise  # 408: the step is not complete yet.
        continue
    if answer.status == 204: break  # There will be no more rows.
    lease = "/v1/partitions/train/leases/" + answer.headers["rolldock-lease"]
    rows = pa.ipc.open_stream(answer).read_all()
    threading.Thread(target=renew, args=(lease, done := threading.Event()), daemon=True).start()
    rows = rows.filter(pc.invert(pc.is_in(rows["_group"], pa.array(state["groups"], pa.string()))))
    if rows.num_rows:  # Otherwise an earlier process died between its checkpoint and its ack of these rows.
        print(f"{rows.num_rows} rows of version {max(version, announced)}: {train(rows):.6f}", flush=True)
        state = {"version": max(version, announced) + 1, "groups": rows["_group"].unique().to_pylist()}
        if args.state: save(state)
    done.set()
    call_of_lease(lease, "ack")
