#!/usr/bin/env python3
"""Checks that `forebay compare` finds real differences and nothing else.

python3 examples/validation/validate.py FOREBAY [RUNS]

Runs three experiments whose truth is known, RUNS times each (20 unless given), and counts what was found.
Needs nginx and two cores that nothing else uses. Exit code 1 where fewer runs than required were right.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# A run that takes longer hangs.
PATIENCE_S = 300


def compare(forebay, experiment, seed, *more):
    """Returns the report of one run. Its exit code does not matter here."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(HERE, experiment)
        command = [forebay, "compare", path, "--quiet", "--seed", str(seed), "--out", folder, *more]
        ended = subprocess.run(command, timeout=PATIENCE_S, stderr=subprocess.PIPE, text=True)
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
        if not report["complete"]:
            sys.exit(f"{experiment}: {report['incomplete_reason']}\n{ended.stderr}")
        return report


def ratio_in_words(ratio):
    if ratio is None:
        return "no ratio: every trial is void"
    low, high = ratio["ci95"]
    width = math.inf if low is None or high is None else (high / low - 1) * 50
    return f"{ratio['verdict']:<6} {ratio['mean']:.3f} +-{width:.1f} %"


def in_words(candidate):
    """Returns the result for rate and CPU per request, and the number of slices."""
    slices = candidate["slices"]
    return (
        f"rate {ratio_in_words(candidate['ratio'])}, CPU {ratio_in_words(candidate['cpu_ratio'])}, "
        f"{slices['disturbed']} of {slices['all']} slices disturbed"
    )


def equal(forebay, seed):
    """Two copies of one nginx: no difference."""
    candidate = compare(forebay, "equal.toml", seed, "--aa")["configurations"][1]
    ratio = candidate["ratio"]
    return ratio is not None and ratio["verdict"] == "same", in_words(candidate)


def slower(forebay, seed):
    """5 % more work: slower, with the measured factor."""
    candidate = compare(forebay, "slower.toml", seed)["configurations"][1]
    ratio = candidate["ratio"]
    return ratio is not None and ratio["verdict"] == "slower", in_words(candidate)


def leak(forebay, seed):
    """1 kB a request: the report shows its size (within a fifth), and no leak of the clean server."""
    clean, leaks = compare(forebay, "leak.toml", seed)["configurations"]
    found, other = leaks["memory_per_request"], clean["memory_per_request"]
    if found is None or other is None:
        return False, "too few bursts"
    is_right = found["leaks"] and 800 <= found["slope"] <= 1200 and not other["leaks"]
    low, high = found["ci95"]
    words = f"{found['slope']:.0f} bytes [{low:.0f}, {high:.0f}], clean {other['slope']:.0f} bytes"
    return is_right, words + (" accused" if other["leaks"] else "")


# The experiments, and the number of correct runs required in twenty.
SETS = [(equal, 19), (slower, 18), (leak, 20)]


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    forebay, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 20
    began, is_enough = time.monotonic(), True
    for run, of_twenty in SETS:
        required, right = runs * of_twenty // 20, 0
        print(f"\n{run.__doc__}", flush=True)
        for seed in range(1, runs + 1):
            is_right, words = run(forebay, seed)
            right += is_right
            print(f"  {seed:>2}  {'right' if is_right else 'WRONG'}  {words}", flush=True)
        print(f"  {right} of {runs} right, {required} required")
        is_enough = is_enough and right >= required
    print(f"\n{(time.monotonic() - began) / 60:.0f} minutes")
    sys.exit(not is_enough)


main()
