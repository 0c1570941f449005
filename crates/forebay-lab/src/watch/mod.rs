//! Watching processes: who descends from whom, what CPU and memory a server takes.

mod cgroup;
mod sample;
mod tree;

pub use cgroup::Cgroup;
pub use sample::{Point, Sampler, Series};
pub use tree::{Cpu, CpuMethod, Glance, Tree, descendants};
