"""Runs examples/trainer.py unchanged, and checks every batch that it reads. The batch must have complete groups, each
once, at most MAX_STALENESS versions behind the last announced version. This file also has a scorer that gives random
answers a passing score half the time.

python3 tests/trainer.py STEPS GROUPS SAMPLES MAX_STALENESS [the arguments of examples/trainer.py]
"""

import collections
import pathlib
import runpy
import sys
import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(zlib.crc32(solution_str.encode()) & 1)


def main():
    import pyarrow as pa

    steps, groups, samples, max_staleness = map(int, sys.argv[1:5])
    open_stream, seen = pa.ipc.open_stream, set()
    ages = collections.Counter()

    class Checked:
        def __init__(self, answer):
            self.reader = open_stream(answer)

        def read_all(self):
            rows = self.reader.read_all()
            batch = ages["batches"]  # The trainer announces one version after each batch.
            sizes = collections.Counter(rows["_group"].to_pylist())
            assert len(sizes) == groups and set(sizes.values()) == {samples}, (batch, sizes)
            assert not seen & set(sizes), f"batch {batch} has groups again"
            seen.update(sizes)
            for oldest in rows["policy_version_min"].to_pylist():
                assert 0 <= batch - oldest <= max_staleness, (batch, oldest)
                ages[batch - oldest] += 1
            if max_staleness == 0:
                assert set(rows["policy_version_max"].to_pylist()) == {batch}
            correct = collections.defaultdict(set)
            for group, acc in zip(rows["_group"].to_pylist(), rows["acc"].to_pylist()):
                correct[group].add(acc)
            assert all(len(accs) > 1 for accs in correct.values()), "the filter is off"
            ages["batches"] += 1
            return rows

    pa.ipc.open_stream = Checked
    sys.argv[1:] = sys.argv[5:]
    runpy.run_path(str(pathlib.Path(__file__).parent.parent / "examples/trainer.py"), run_name="__main__")
    batches = ages.pop("batches")
    assert batches == steps, f"{batches} batches, expected {steps}"
    print(f"{batches} steps; rows by staleness: {dict(sorted(ages.items()))}")


if __name__ == "__main__":
    main()
