//! Histograms, intervals and ratios for load measurements. No I/O.
#![forbid(unsafe_code)]
