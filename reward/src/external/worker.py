"""Runs one reward function, or one environment, over JSON lines; `processes.rs` documents the protocol.

`loading.py` comes before this text.

The protocol has file descriptors of its own, so what a reward function prints goes to standard error. An exception is
the answer to one job; an exit of the process (sys.exit, a crash) ends the worker.
"""

import inspect
import math

VALUE_CHARS_MAX = 100
PRED_CHARS_MAX = 1000
PARTS_MAX = 32
NAME_CHARS_MAX = 100
NAMES = ("data_source", "solution_str", "ground_truth", "extra_info")


def load_environment(target):
    """An object of the class. Missing methods are found here, before the first trajectory."""
    kind = load(target)
    if not inspect.isclass(kind):
        raise TypeError(f"{target} is a {type(kind).__name__}; expected a class")
    environment = kind()
    for method in ("reset", "step"):
        if not callable(getattr(environment, method, None)):
            raise TypeError(f"{target} has no method {method}")
    return environment


def takes_prompt(function):
    """verl's functions take no prompt; a function with a parameter of this name gets it."""
    try:
        return "prompt" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


class WrongResult(Exception):
    """The function returned something other than a score. The traceback would not help."""


def number(value, name):
    try:
        # float() would also accept text.
        result = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if math.isfinite(result):
        return result
    raise WrongResult(f"{name} is {repr(value)[:VALUE_CHARS_MAX]}; expected a finite number")


def parts(result):
    if not isinstance(result, dict) or len(result) > PARTS_MAX:
        raise WrongResult(f"parts is {repr(result)[:VALUE_CHARS_MAX]}; expected a dict of at most {PARTS_MAX} numbers")
    return {clean(str(name)[:NAME_CHARS_MAX]): number(part, "a part") for name, part in result.items()}


def verdict(result):
    if not isinstance(result, dict):
        return {"score": number(result, "the result")}
    if "score" not in result:
        keys = str(sorted(map(str, result)))[:VALUE_CHARS_MAX]
        raise WrongResult(f"expected the result to have \"score\"; it has {keys}")
    answer = {"score": number(result["score"], "score")}
    if result.get("acc") is not None:
        answer["acc"] = number(result["acc"], "acc")
    if result.get("pred") is not None:
        # A worker whose answer line exceeds its limit is killed.
        answer["pred"] = clean(str(result["pred"])[:PRED_CHARS_MAX])
    if result.get("parts") is not None:
        answer["parts"] = parts(result["parts"])
    return answer


class Worker:
    def __init__(self):
        self.process = os.getpid()
        self.questions = os.fdopen(os.dup(0), "rb")
        self.answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        # One event loop serves all jobs, because a client that a function keeps between calls belongs to one loop.
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def say(self, message):
        if os.getpid() != self.process:
            # A process that the function forked has returned here. Its answer would be an extra answer.
            os._exit(1)
        self.answers.write(json.dumps(message).encode("ascii") + b"\n")
        self.answers.flush()

    def call(self, function, arguments):
        result = function(**arguments)
        if inspect.isawaitable(result):
            result = self.loop.run_until_complete(finished(result))
        return result

    def rewards(self, target):
        """Answers jobs with scores of a function."""
        function = load_function(target)
        with_prompt = takes_prompt(function)

        def ask(job):
            arguments = {name: job[name] for name in NAMES}
            if with_prompt:
                arguments["prompt"] = job["prompt"]
            return verdict(self.call(function, arguments))

        return ask

    def environments(self, target):
        """Answers questions with the results of an object's methods."""
        environment = load_environment(target)

        def ask(job):
            name = "reset" if "reset" in job else "step"
            result = self.call(getattr(environment, name), job[name])
            try:
                json.dumps(result, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise WrongResult(f"the result of {name} cannot be sent: {error}") from error
            return {"result": result}

        return ask

    def run(self, target, kind):
        try:
            ask = self.environments(target) if kind == "environment" else self.rewards(target)
        except BaseException as error:
            self.say({"fatal": reason(error)})
            return
        self.say({"ready": True})
        for line in self.questions:
            job = json.loads(line)
            try:
                answer = ask(job)
            except WrongResult as error:
                answer = {"error": clean(error)}
            except OSError as error:
                # A connection, a time-out or a file: probably not the fault of the sample.
                answer = {"error": reason(error), "unavailable": True}
            except Exception as error:
                answer = {"error": reason(error)}
            except SystemExit as error:
                leave(error)
            except BaseException as error:
                # A cancelled task, for example: the function has failed, but this process was not asked to end.
                answer = {"error": reason(error)}
            self.say({"id": job["id"], **answer})


if __name__ == "__main__":
    die_with_parent()
    target, kind = sys.argv[1], "".join(sys.argv[2:3])
    sys.argv = [target]
    Worker().run(target, kind)
