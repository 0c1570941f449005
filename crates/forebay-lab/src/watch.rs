//! Observation of processes: their descent, and the CPU time and memory of a server.

mod evidence;
mod listener;
mod sample;
mod tree;

pub use evidence::{Evidence, Witness};
pub use forebay_process::Cpu;
pub use listener::listeners;
pub use sample::{Point, Sampler, Series};
pub use tree::{CpuMethod, Glance, Tree};
