//! Helpers for Forebay's own tests. Never shipped.
#![forbid(unsafe_code)]
