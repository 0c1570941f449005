//! Statistics of load measurements: latency histograms, summaries of repeated trials, paired ratios
//! with confidence intervals, outlier flags and slopes.
//!
//! Pure arithmetic: nothing here reads a clock, a file or a socket, and nothing decides what to
//! measure. Each function names the source of its formula.
#![forbid(unsafe_code)]

mod latency;
mod outlier;
mod ratio;
mod slope;
mod student;
mod summary;

pub use latency::{Latency, LatencyDecodeError};
pub use outlier::outliers;
pub use ratio::{Ratio, Verdict, ratio_ci};
pub use slope::theil_sen;
pub use student::t_quantile;
pub use summary::{Summary, median};
