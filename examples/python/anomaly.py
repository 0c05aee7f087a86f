# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds anomalous jobs in a recording by scikit-learn, beside those that the report names.

    overhear run --out kept -- PROGRAM      (a program with a sampler; or with --sample)
    python3 anomaly.py kept SAMPLER

A forest learns from all jobs of a thread at once, so it also finds unusual combinations of usual
values. It always calls the same share of the jobs anomalous: SHARE. The detector of the report
judges each job by the earlier ones, while the program runs, and bounds the rate of false alarms.
"""

import sys

import numpy as np
import overhear
from sklearn.ensemble import IsolationForest

SHARE = 0.02
JOB_END = 8
#: The columns of a sample that are no quantities.
FRAME = {"sequence", "time_ns", "tid", "pid", "point", "cpu"}
#: With fewer jobs, a share of them is no job.
FEWEST = 100


def deviations(values: np.ndarray) -> np.ndarray:
    """The distances from the median of each column, in spreads (1.4826 MAD)."""
    median = np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(values - median), axis=0)
    return (values - median) / np.maximum(spread, np.maximum(0.01 * np.abs(median), 1.0))


def anomalous(jobs: np.ndarray, quantities: list) -> list:
    """The numbers of the anomalous jobs of one thread from 1, the least usual first."""
    values = np.column_stack([jobs[name].astype(float) for name in quantities])
    scaled = deviations(values)
    forest = IsolationForest(n_estimators=200, contamination=SHARE, random_state=1).fit(scaled)
    order = np.argsort(forest.score_samples(scaled))
    is_anomalous = forest.predict(scaled) == -1
    return [(int(job) + 1, scaled[job]) for job in order if is_anomalous[job]]


def main(directory: str, sampler: str) -> None:
    samples = overhear.read(directory)[sampler]
    jobs = samples[samples["point"] == JOB_END]
    quantities = [name for name in jobs.dtype.names if name not in FRAME]
    for tid in np.unique(jobs["tid"]):
        mine = jobs[jobs["tid"] == tid]
        if mine.size < FEWEST:
            print(f"thread {tid}: {mine.size} jobs are too few")
            continue
        for job, distances in anomalous(mine, quantities):
            off = np.argsort(-np.abs(distances))[:3]
            facts = [f"{quantities[i]} {mine[quantities[i]][job - 1]} ({distances[i]:+.0f} spreads)" for i in off]
            print(f"thread {tid}: job {job}: {', '.join(facts)}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
