//! What was typed in a configuration file, resolved into a plan that is valid by construction.
#![forbid(unsafe_code)]
