//! Experiments: plan, interleaved rounds, process sampling, statistics and report.
#![forbid(unsafe_code)]
