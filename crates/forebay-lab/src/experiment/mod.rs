//! The experiment: what the file says ([`file`]), checked and resolved ([`plan`]).

mod file;
mod parse;
mod placeholder;
mod plan;
mod problem;
mod requires;

pub use placeholder::Values;
pub use plan::{Amount, Check, Configuration, Load, Plan};
pub use problem::Problem;
pub use requires::{missing, search_path};
