//! Watching processes: who descends from whom, what CPU and memory a server takes.

mod evidence;
mod sample;
mod tree;

pub use evidence::{Evidence, Witness};
pub use forebay_process::Cpu;
pub use sample::{Point, Sampler, Series};
pub use tree::{CpuMethod, Glance, Tree};
