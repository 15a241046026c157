"""Faults around a gateway: it is killed, its agents are killed, its engine is killed, weights change in the middle of a
turn, and a client repeats its request after its connection was cut. In each case the rows of the gateway are what the
engine made, and each turn that the agent received is trained once. Needs pyarrow.

python faults.py BINARY [ROUNDS]
"""

import http.client
import json
import pathlib
import random
import sys
import tempfile
import threading
import time
import urllib.request

import compare
import scripts
from relay import GENERATE
from world import World

TURNS = 4
PATIENCE_S = 240
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
MOMENTS = ("while the engine works", "when the engine has answered", "when the agent has its answer", "at any time")


class Caller:
    """An agent that repeats a call whose answer it did not get, and marks the repetition as the vendors' clients do."""

    def __init__(self, world):
        self.world = world
        self.made = world.open(prompt="a fault")
        self.messages = [{"role": "user", "content": "What is one plus three?"}]
        self.received = 0

    def body(self):
        return {"model": self.world.model, "messages": self.messages, "tools": TOOLS, "max_tokens": 200}

    def connect(self):
        return http.client.HTTPConnection(*World.address(self.world.gateway.url), timeout=PATIENCE_S)

    def send(self, connection, retries=0):
        headers = {"content-type": "application/json", "x-stainless-retry-count": str(retries)}
        path = f"/t/{self.made['capability']}/v1/chat/completions"
        connection.request("POST", path, json.dumps(self.body()), headers)

    def once(self, retries=0):
        """The status and the text of one answer."""
        connection = self.connect()
        try:
            self.send(connection, retries)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ask(self):
        """The answer, after as many repetitions as it takes."""
        give_up = time.monotonic() + PATIENCE_S
        retries = 0
        while True:
            try:
                status, text = self.once(retries)
                if status == 200:
                    return json.loads(text)
                assert status in (408, 409, 429) or status >= 500, f"{status}: {text}"
            except (OSError, http.client.HTTPException):
                text = "no answer"
            assert time.monotonic() < give_up, f"the gateway does not recover: {text}"
            retries += 1
            time.sleep(0.05)

    def take(self, answer):
        """Continues the conversation with an answer."""
        (choice,) = answer["choices"]
        message = choice["message"]
        self.received += 1
        self.messages = [*self.messages, {key: value for key, value in message.items() if value is not None}]
        calls = message.get("tool_calls") or []
        for call in calls:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "one and three are 4."})
        if not calls:
            self.messages.append({"role": "user", "content": "Again?"})

    def turn(self):
        self.take(self.ask())

    def end(self, lost=True, unsure=0):
        """Ends the trajectory, and checks its rows. A gateway that was killed may not know that the agent received the
        last `unsure` turns. It then does not train these turns."""
        self.world.complete(self.made, 1.0)
        rows = self.world.rows([self.made])
        turns, tokens = compare.compare(rows, self.world.relay.generated(self.made["trajectory"]), lost)
        known = range(self.received - unsure, self.received + 1)
        assert turns in known, f"the agent received {self.received} turns, the rows train {turns}"
        return rows, tokens


def beside(action):
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def gateway_killed(world, rounds):
    """Kills the gateway at a turn and starts it again. The rounds alternate between the turns and the moments."""
    draw = random.Random(1)
    for number in range(rounds):
        caller = Caller(world)
        fatal, moment = (number + number // TURNS) % TURNS, MOMENTS[number % len(MOMENTS)]
        for turn in range(TURNS):
            if turn != fatal:
                caller.turn()
                continue
            killer = None
            begun = world.relay.begun
            if moment == MOMENTS[0]:
                killer = beside(lambda: (world.relay.await_begun(begun + 1), world.restart_gateway()))
            elif moment == MOMENTS[1]:
                killed = threading.Event()

                def kill(path):
                    if path != GENERATE or killed.is_set():
                        return True
                    killed.set()
                    world.gateway.kill()
                    return False

                world.relay.before_answer = kill
                killer = beside(lambda: (killed.wait(PATIENCE_S), world.start_gateway()))
            elif moment == MOMENTS[3]:
                delay = draw.uniform(0, 0.1)
                killer = beside(lambda: (time.sleep(delay), world.restart_gateway()))
            caller.turn()
            if moment == MOMENTS[2]:
                world.restart_gateway()
            if killer:
                killer.join()
            world.relay.before_answer = None
        may_miss = fatal == TURNS - 1 and moment in MOMENTS[2:]
        caller.end(unsure=int(may_miss))
    return f"rounds={rounds}"


def agent_killed(world, rounds):
    """Closes the agent's connection while the engine works. The engine stops, and the turn leaves nothing."""
    for number in range(rounds):
        caller = Caller(world)
        for turn in range(TURNS):
            if turn == number % TURNS:
                begun = world.relay.begun
                connection = caller.connect()
                caller.send(connection)
                world.relay.await_begun(begun + 1)
                connection.close()
            caller.turn()
        # The agent did not receive the turn, even if it was complete before the connection closed. Nothing trains it.
        caller.end()
    return f"rounds={rounds}"


def engine_killed(world, rounds):
    for number in range(rounds):
        caller = Caller(world)
        for turn in range(TURNS):
            killer = None
            if turn == number % TURNS:
                begun = world.relay.begun
                killer = beside(lambda: (world.relay.await_begun(begun + 1), world.restart_engine()))
            caller.turn()
            if killer:
                killer.join()
        caller.end()
    return f"rounds={rounds}"


def post(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method="POST")
    urllib.request.urlopen(request, timeout=60).read()


def weights_updated(world, rounds):
    """Changes the weights' version while the engine works on a turn."""
    split = 0
    for number in range(rounds):
        caller = Caller(world)
        mode = ("keep", "abort")[number % 2]

        def update(begun, version):
            world.relay.await_begun(begun + 1)
            time.sleep(0.05)
            post(f"{world.engine.url}/pause?mode={mode}")
            post(f"{world.engine.url}/update_weight_version", {"new_version": version})
            post(f"{world.engine.url}/resume")

        for turn in range(TURNS):
            begun, version = world.relay.begun, str(number * TURNS + turn + 1)
            updater = beside(lambda: update(begun, version))
            caller.turn()
            updater.join()
        rows, _ = caller.end(lost=False)
        for row in rows:
            turns = list(zip(row["turn_starts"], row["turn_ends"]))
            bounds = {span["start"] for span in row["version_spans"]}
            split += sum(any(start < bound < end for bound in bounds) for start, end in turns)
    assert split, "no turn has tokens of two versions"
    return f"rounds={rounds} turns_of_two_versions={split}"


def connection_cut(world, rounds):
    """Loses an answer on its way to the agent. The marked repetition gets the same answer, and the engine generates
    nothing for it. If the agent repeats the request without the mark, the gateway makes a new turn."""
    for number in range(rounds):
        caller = Caller(world)
        for turn in range(TURNS):
            lost = turn == number % TURNS
            if lost:
                # The whole answer was made, but the agent reads none of it.
                status, first = caller.once()
                assert status == 200, first
                made = len(world.relay.generated())
                status, again = caller.once(retries=1)
                assert status == 200, again
                assert len(world.relay.generated()) == made, "the engine made a repeated turn anew"
                assert again == first, "the repeated answer differs"
                caller.take(json.loads(again))
            else:
                caller.turn()
        status, sibling = caller.once()
        assert status == 200, sibling
        status, other = caller.once()
        assert status == 200, other
        assert json.loads(sibling)["id"] != json.loads(other)["id"], "an unmarked request was answered twice"
        caller.received += 2
        rows, _ = caller.end(lost=False)
        assert len(rows) == 2, f"expected a row for each sibling, got {len(rows)}"
    return f"rounds={rounds}"


def ended(world, _rounds):
    """Calls after the end are refused so that clients do not repeat them."""
    caller = Caller(world)
    caller.turn()
    caller.end(lost=False)
    connection = caller.connect()
    caller.send(connection)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["x-should-retry"]) == (400, "false"), answer.read()
    connection.close()
    return "refused"


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    script = scripts.script(scripts.ADD, scripts.AGAIN, scripts.SAID, scripts.ADD, scripts.AGAIN)
    with tempfile.TemporaryDirectory() as folder:
        # A token takes about 2 ms.
        binary, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(folder) / "world"
        with World(binary, folder, script=script, time_scale=0.4) as world:
            for fault in (ended, connection_cut, agent_killed, weights_updated, engine_killed, gateway_killed):
                began = time.monotonic()
                share = rounds if fault is gateway_killed else max(2, rounds // 4)
                said = fault(world, share)
                print(f"{fault.__name__}: {said} in {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
