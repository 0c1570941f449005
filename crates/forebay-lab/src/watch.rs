//! Observes processes: finds the processes of a server, and reads their CPU time and memory.

mod evidence;
mod listener;
mod sample;
mod tree;

pub use evidence::{Evidence, Witness};
pub use forebay_process::Cpu;
pub use listener::listeners;
pub use sample::{Point, Sampler, Series};
pub use tree::{CpuMethod, Glance, Tree};
