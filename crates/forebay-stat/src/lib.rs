//! Statistics of load measurements: latency histograms, summaries of repeated trials, ratios with
//! confidence intervals, corrections for several comparisons, outlier flags, slopes and memory
//! growth.
//!
//! The crate is pure arithmetic. No function reads a clock, a file or a socket. The caller decides
//! what to measure. Each function names the source of its formula.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod holm;
mod latency;
mod leak;
mod outlier;
mod ratio;
mod slope;
mod student;
mod summary;
mod trimmed;

pub use holm::{holm, holm_levels};
pub use latency::{Latency, LatencyDecodeError};
pub use leak::{FEWEST_BURSTS, Growth, growth};
pub use outlier::outliers;
pub use ratio::{Ratio, Verdict, ratio_ci, ratio_of_rounds, ratio_of_runs};
pub use slope::theil_sen;
pub use student::{t_quantile, t_two_sided};
pub use summary::{Summary, median};
pub use trimmed::Estimate;

// The tests compile and run the examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
