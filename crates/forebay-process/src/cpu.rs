//! CPU time of processes.

use std::iter::Sum;
use std::ops::{Add, Sub};
use std::time::Duration;

/// CPU time of one or more processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// CPU time in the program itself.
    pub user: Duration,
    /// CPU time in the kernel, on behalf of the program.
    pub system: Duration,
}

impl Cpu {
    /// Returns user and system time together.
    pub fn total(&self) -> Duration {
        self.user + self.system
    }
}

impl Add for Cpu {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            user: self.user.saturating_sub(other.user),
            system: self.system.saturating_sub(other.system),
        }
    }
}

impl Sum for Cpu {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
