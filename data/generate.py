#!/usr/bin/env python3
"""Writes Rolldock's own data set: arithmetic and word problems from easy to impossible.

    python3 data/generate.py [--out DIR]

writes `arithmetic/train.jsonl` (2,000 rows, seed 20261) and `arithmetic/validation.jsonl` (64 rows, seed
20262) beside this file, or below DIR. The same Python source gives the same bytes everywhere: it uses the
standard library only, a random generator that is defined below, and no iteration over sets or hashes. A test
of the orchestrator runs this script and compares the files.

Rows have the columns of the DAPO / verl data sets. `extra_info.difficulty` is added by us: every model solves
a problem of difficulty 0, and no model solves a problem of difficulty 1. It grows with the operands and the number of
steps. The last kinds cannot be solved without a calculator. So there are groups with only right answers, with
right and wrong ones, and with only wrong ones.
"""

import argparse
import json
import pathlib

TRAIN_ROWS, TRAIN_SEED = 2000, 20261
VALIDATION_ROWS, VALIDATION_SEED = 64, 20262

INSTRUCTION = 'Solve this problem step by step. Write the result alone on the last line, as "Answer: " and a number.'

NAMES = (
    "Ada Amir Anke Bela Bruno Carla Chidi Clara Dario Dina Elif Emil Esra Farid Fiona Greta Hana Hugo Ines Ivan "
    "Jana Jonas Kaito Kira Lars Leila Luca Maja Malik Mira Nadia Nils Noor Olga Oskar Petra Priya Quentin Rania "
    "Rosa Samir Selma Sven Tara Timo Uma Vera Viktor Wanda Yara Yusuf Zoe"
).split()
THINGS = (
    "apples pears plums lemons cherries melons walnuts acorns pebbles shells marbles buttons stamps coins tickets "
    "postcards pencils crayons brushes notebooks envelopes candles lanterns ribbons bottles jars baskets boxes "
    "crates bricks planks nails screws magnets batteries cables lamps chairs tables blankets pillows towels "
    "sandwiches pancakes cookies muffins dumplings pretzels tomatoes carrots onions potatoes pumpkins seedlings "
    "tulips roses daisies feathers kites balloons puzzles cards dice drums flutes whistles maps books"
).split()
PLACES = (
    "market harbour library school garden station museum bakery workshop factory orchard village theatre stadium "
    "warehouse farm island castle bridge forest hospital airport office kitchen laboratory"
).split()
WORKERS = "machine printer robot baker gardener carpenter painter tailor potter weaver".split()


class SplitMix:
    """The splitmix64 generator, so that no release of Python can change our rows."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & self.MASK
        return mixed ^ (mixed >> 31)

    def between(self, low, high):
        return low + self.next() % (high - low + 1)

    def digits(self, count):
        return self.between(10 ** (count - 1), 10**count - 1)

    def choose(self, options):
        return options[self.next() % len(options)]


# Every kind takes the generator and `level` in 0..=9 and returns (question, answer, difficulty).


def addition(rng, level):
    left, right = rng.digits(1 + level), rng.digits(1 + level)
    if rng.between(0, 1):
        return f"What is {left} + {right}?", left + right, 0.05 * level
    return f"What is {left} - {right}?", left - right, 0.05 * level + 0.02


def multiplication(rng, level):
    left, right = rng.digits(1 + level), rng.digits(1 + (level + 1) // 2)
    return f"Compute {left} * {right}.", left * right, min(1.0, 0.05 + 0.12 * level)


def shopping(rng, level):
    name, thing, place = rng.choose(NAMES), rng.choose(THINGS), rng.choose(PLACES)
    boxes, each = rng.between(2, 5 + 4 * level), rng.between(3, 9 + 7 * level)
    given = rng.between(1, boxes * each - 1)
    question = (
        f"{name} buys {boxes} boxes with {each} {thing} each at the {place} and gives {given} of the {thing} away. "
        f"How many {thing} does {name} have left?"
    )
    return question, boxes * each - given, 0.1 + 0.05 * level


def sharing(rng, level):
    name, friend, thing = rng.choose(NAMES), rng.choose(NAMES), rng.choose(THINGS)
    children, share = rng.between(3, 6 + level), rng.between(2, 6 + 5 * level)
    rest = rng.between(0, children - 1)
    total = children * share + rest
    question = (
        f"{name} and {friend} share {total} {thing} equally among {children} children. "
        f"How many {thing} remain when every child has as many as possible?"
    )
    return question, rest, 0.15 + 0.05 * level


def working(rng, level):
    worker, thing = rng.choose(WORKERS), rng.choose(THINGS)
    count, per_hour, hours = rng.between(2, 4 + level), rng.between(3, 8 + 6 * level), rng.between(2, 5 + level)
    broken_after = rng.between(1, hours - 1)
    made = count * per_hour * broken_after + (count - 1) * per_hour * (hours - broken_after)
    question = (
        f"One {worker} makes {per_hour} {thing} an hour. {count} of them start together, and after "
        f"{broken_after} hours one stops for good while the others go on. "
        f"How many {thing} are there after {hours} hours in all?"
    )
    return question, made, 0.3 + 0.05 * level


def travelling(rng, level):
    name, origin, target = rng.choose(NAMES), rng.choose(PLACES), rng.choose(PLACES)
    speed, rest, legs = rng.between(3, 20 + level), rng.between(5, 55), rng.between(2, 3 + level)
    minutes = rng.between(1, 6) * 60
    question = (
        f"{name} rides from the {origin} to the {target} in {legs} legs of {minutes} minutes each, at {speed} "
        f"kilometres an hour, and rests {rest} minutes between two legs. "
        f"How long is the way in kilometres, plus the whole journey in minutes?"
    )
    answer = legs * speed * minutes // 60 + legs * minutes + (legs - 1) * rest
    return question, answer, 0.35 + 0.05 * level


def sequence(rng, level):
    first, step, place = rng.between(1, 20), rng.between(2, 5 + 3 * level), rng.between(6, 12 + 10 * level)
    total = place * first + step * place * (place - 1) // 2
    question = (
        f"A sequence starts with {first} and every number is {step} more than the one before. "
        f"What is the sum of its first {place} numbers?"
    )
    return question, total, 0.3 + 0.06 * level


def remainder(rng, level):
    base, power, modulus = rng.between(2, 9 + level), rng.between(3, 8 + 30 * level), rng.between(7, 20 + 90 * level)
    question = f"What is the remainder when {base}^{power} is divided by {modulus}?"
    return question, pow(base, power, modulus), min(1.0, 0.4 + 0.07 * level)


def long_product(rng, level):
    left, right = rng.digits(6 + level), rng.digits(6 + level)
    return f"Compute {left} * {right} exactly, without rounding.", left * right, min(1.0, 0.9 + 0.02 * level)


def scrambled(rng, level):
    state, rounds, modulus = rng.digits(3), rng.between(40, 60 + 40 * level), 9973
    start = state
    for _ in range(rounds):
        state = (state * state + 17) % modulus
    question = (
        f"Start with {start}. Replace the number by its square plus 17, reduced modulo {modulus}, and do so "
        f"{rounds} times. Which number comes out?"
    )
    return question, state, 1.0


KINDS = (addition, multiplication, shopping, sharing, working, travelling, sequence, remainder, long_product, scrambled)


def rows(count, seed, split, taken):
    """Yields `count` rows whose questions are not in `taken`, and adds their questions to `taken`."""
    rng = SplitMix(seed)
    index = 0
    while index < count:
        kind = rng.choose(KINDS)
        question, answer, difficulty = kind(rng, rng.between(0, 9))
        if question in taken:
            continue
        taken.add(question)
        yield {
            "data_source": "rolldock/arithmetic",
            "prompt": [{"role": "user", "content": f"{INSTRUCTION}\n\n{question}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(answer)},
            "extra_info": {"index": index, "split": split, "kind": kind.__name__, "difficulty": round(difficulty, 2)},
        }
        index += 1


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Write Rolldock's arithmetic data set.")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="folder to write arithmetic/ into"
    )
    out = parser.parse_args().out
    # Both calls of `rows` share this set, so that no validation question is in the training rows.
    taken = set()
    write(out / "arithmetic" / "train.jsonl", rows(TRAIN_ROWS, TRAIN_SEED, "train", taken))
    write(out / "arithmetic" / "validation.jsonl", rows(VALIDATION_ROWS, VALIDATION_SEED, "validation", taken))


if __name__ == "__main__":
    main()
