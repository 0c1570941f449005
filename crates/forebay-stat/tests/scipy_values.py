#!/usr/bin/env python3
"""Writes scipy_values.json: what scipy makes of fixed samples. Debian: python3-scipy."""
import json
import random

import numpy
import scipy
from scipy import stats

random.seed(14)


def samples(n, wild):
    values = [random.gauss(0.05, 0.1) for _ in range(n)]
    for index in range(wild):
        values[index * 3 % n] += random.choice([-2.0, 3.0])
    return [round(value, 6) for value in values]


def yuen(values):
    # If the other sample has no variance, Yuen's test of two samples equals his test of one sample.
    result = stats.ttest_ind(values, [0.0] * len(values), equal_var=False, trim=0.2)
    mean = stats.trim_mean(values, 0.2)
    error = mean / result.statistic
    kept = len(values) - 2 * int(0.2 * len(values))
    half = stats.t.ppf(0.975, kept - 1) * error
    return {
        "samples": values,
        "mean": mean,
        "error": error,
        "p": result.pvalue,
        "low": mean - half,
        "high": mean + half,
    }


def holm(p):
    order = sorted(range(len(p)), key=lambda index: p[index])
    adjusted = [0.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = largest
    return adjusted


def mean_interval(values):
    result = stats.ttest_1samp(values, 0.0)
    error = stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, numpy.mean(values), error)
    return {"samples": values, "p": result.pvalue, "low": low, "high": high}


def theil_sen(n):
    x = [round(random.uniform(0, 10000), 1) for _ in range(n)]
    y = [round(3.5 * value + random.gauss(0, 900), 1) for value in x]
    return {"points": list(zip(x, y)), "slope": stats.theilslopes(y, x)[0]}


with numpy.errstate(divide="ignore", invalid="ignore"):
    values = {
        "scipy": scipy.__version__,
        "yuen": [yuen(samples(n, wild)) for n, wild in
                 [(5, 0), (6, 1), (7, 0), (10, 2), (20, 3), (33, 5), (50, 0)]],
        "student": [mean_interval(samples(n, 0)) for n in (2, 3, 6, 12)],
        "t_ppf": [[p, df, stats.t.ppf(p, df)] for p in (0.6, 0.9, 0.975, 0.9995)
                  for df in (1, 2, 3, 5, 8, 19, 60, 200)],
        "t_two_sided": [[t, df, 2 * stats.t.sf(t, df)] for t in (0.1, 1.0, 2.5, 6.0)
                        for df in (1, 2, 3, 5, 8, 19, 60, 200)],
        "theil_sen": [theil_sen(n) for n in (6, 13, 30)],
        "holm": [{"p": p, "adjusted": holm(p)} for p in
                 ([0.01, 0.04, 0.03, 0.005], [0.2], [0.6, 0.5, 0.001], [0.012, 0.012, 0.4, 0.9])],
    }

with open("scipy_values.json", "w") as out:
    json.dump(values, out, indent=1)
    out.write("\n")
