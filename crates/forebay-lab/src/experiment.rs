//! Experiment file: the parsed TOML (`file`), and the validated plan with all defaults (`plan`).

mod client;
mod client_table;
mod file;
mod matrix;
mod parse;
mod plan;
mod problem;
mod requires;
mod seconds;
mod service;

pub use client::{Better, Client, Find, Printed};
pub use plan::Cell;
pub use plan::MaxFailed;
pub use plan::{Amount, Check, Configuration, Load, Plan, Service, Template};
pub use plan::{ServiceValues, Values};
pub use problem::Problem;
pub use requires::{in_words, missing};
