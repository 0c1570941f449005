//! Resolves the resource limits of an application's processes, and the files in `watch`.

use std::path::{Path, PathBuf};

use super::Resolution;
use super::value::{optional_time_above_zero, size, text, within};
use crate::file::{self, At};
use crate::plan::{CgroupLimits, ProcessLimits};

/// The smallest accepted `max_memory` in bytes. With less, each worker would be replaced before it
/// served a request.
pub(super) const LEAST_MEMORY: u64 = 1024 * 1024;

/// The smallest accepted address space in bytes. With less, no program could start.
const LEAST_SPACE: u64 = 16 * 1024 * 1024;

/// The largest number of watched paths.
const MOST_WATCHED: usize = 100;

pub(super) fn watch(dir: &Path, typed: &file::App) -> Resolution<Vec<PathBuf>> {
    let Some(at) = &typed.watch else { return Ok(Vec::new()) };
    let items = at.items();
    within(&at.with(items.len()), 1..=MOST_WATCHED)?;
    items.iter().map(|item| Ok(dir.join(text(item)?))).collect()
}

pub(super) fn limits(typed: &file::AppLimits) -> Resolution<ProcessLimits> {
    let number = |typed: &Option<At<u64>>, least: u64| match typed {
        Some(at) => within(at, least..=i64::MAX as u64).map(Some),
        None => Ok(None),
    };
    Ok(ProcessLimits {
        open_files: number(&typed.open_files, 16)?,
        memory: at_least(&typed.memory, LEAST_SPACE)?,
        cpu_time: optional_time_above_zero(&typed.cpu_time)?.map(|time| time.as_secs().max(1)),
        processes: number(&typed.processes, 1)?,
        core: size(&typed.core)?,
    })
}

pub(super) fn cgroup(typed: &file::Cgroup) -> Resolution<CgroupLimits> {
    let number = |typed: &Option<At<u64>>, range| match typed {
        Some(at) => within(at, range).map(Some),
        None => Ok(None),
    };
    Ok(CgroupLimits {
        memory: at_least(&typed.memory, LEAST_MEMORY)?,
        cpu_percent: number(&typed.cpu_percent, 1..=1_000_000)?,
        processes: number(&typed.processes, 1..=4_000_000)?,
    })
}

/// Returns the largest number of CGI processes at the same time.
pub(super) fn max_processes(typed: &Option<At<usize>>) -> Resolution<usize> {
    typed.as_ref().map_or(Ok(64), |at| within(at, 1..=100_000))
}

pub(super) fn at_least(typed: &Option<file::Size>, least: u64) -> Resolution<Option<u64>> {
    match (typed, size(typed)?) {
        (Some(at), Some(bytes)) => within(&at.with(bytes), least..=u64::MAX).map(Some),
        _ => Ok(None),
    }
}
