//! The `forebay` command: flags, subcommands and exit codes.
#![forbid(unsafe_code)]

fn main() {}
