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
mod ratio;
mod summary;
mod trimmed;

pub use holm::{holm, holm_levels};
pub use latency::{Latency, LatencyDecodeError};
pub use leak::theil_sen;
pub use leak::{FEWEST_BURSTS, Growth, growth};
pub use ratio::{Ratio, Verdict, ratio_ci, ratio_of_rounds, ratio_of_runs};
pub use summary::outliers;
pub use summary::{Summary, median};
pub use trimmed::Estimate;
pub use trimmed::{t_quantile, t_two_sided};

// The tests compile and run the examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
