//! Observes processes: finds the processes of a server, and reads their CPU time and memory.

mod sample;
mod tree;

pub use forebay_process::Cpu;
pub use sample::{Evidence, Witness};
pub use sample::{Point, Sampler, Series};
pub use tree::listeners;
pub use tree::{CpuMethod, Glance, Tree};
