//! Experiment file: the parsed TOML (`file`), and the validated plan with all defaults (`plan`).

mod against;
mod cell;
mod client;
mod client_table;
mod command;
mod file;
mod matrix;
mod max_failed;
mod parse;
mod placeholder;
mod plan;
mod problem;
mod requires;
mod seconds;
mod service;

pub use cell::Cell;
pub use client::{Better, Client, Find, Printed};
pub use max_failed::MaxFailed;
pub use placeholder::{ServiceValues, Values};
pub use plan::{Amount, Check, Configuration, Load, Plan, Service, Template};
pub use problem::Problem;
pub use requires::{in_words, missing};
