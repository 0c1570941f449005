//! The processors that this process may use, and threads that are pinned to one of them.
//!
//! It costs several times as much to wake a process on another processor as on the same one. On a
//! virtual machine, a message to another process and back costs 28 us of CPU between two
//! processors, and 6 us on one. On a nested virtual machine, such a message costs 73 us between two
//! processors. Therefore each serving thread is pinned to a processor, together with the process
//! that it wakes at every request. Forebay never leaves the processors found at the start:
//! `taskset`, a service manager or a container has chosen them.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

static FOUND: OnceLock<Option<CpuSet>> = OnceLock::new();

thread_local! {
    /// The processor to which this thread is pinned.
    static KEPT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Records the processors that this process may use. Later calls do nothing.
pub fn record_processors() {
    let _ = FOUND.set(sched_getaffinity(None).ok());
}

/// Returns a processor for each thread that is to be pinned. Returns no processor if `threads` is 1
/// or differs from the number of processors: the kernel should then move the threads to free
/// processors.
pub fn processors_for(threads: usize) -> Vec<usize> {
    let Some(Some(found)) = FOUND.get() else { return Vec::new() };
    if threads < 2 || found.count() as usize != threads {
        return Vec::new();
    }
    (0..CpuSet::MAX_CPU).filter(|&processor| found.is_set(processor)).collect()
}

/// Pins the calling thread to this processor.
///
/// # Errors
/// Fails with an error of the kernel, for example if the process may not run there (EINVAL).
pub fn keep_to(processor: usize) -> io::Result<()> {
    sched_setaffinity(None, &one(processor))?;
    KEPT.set(Some(processor));
    Ok(())
}

/// Returns the processor to which the calling thread is pinned. Returns `None` if the thread is not
/// pinned.
pub fn kept_processor() -> Option<usize> {
    KEPT.get()
}

/// Lets the calling thread run on all recorded processors, even if a pinned thread has started it.
pub fn leave_processor() {
    if let Some(Some(found)) = FOUND.get() {
        let _ = sched_setaffinity(None, found);
    }
    KEPT.set(None);
}

/// Calls `start`, which starts a process. The process may run on all recorded processors, even if
/// the calling thread is pinned to one. Returns the result of `start`.
pub fn on_all_processors<T>(start: impl FnOnce() -> T) -> T {
    let Some(processor) = kept_processor() else { return start() };
    leave_processor();
    let started = start();
    let _ = keep_to(processor);
    started
}

/// Pins the first thread of a process to `processor`. If `processor` is `None`, lets the thread run
/// on all recorded processors. Without recorded processors, `None` changes nothing.
///
/// # Errors
/// Fails with an error of the kernel, for example if the process has ended (ESRCH) or belongs to
/// another user (EPERM).
pub fn keep_process(process: Pid, processor: Option<usize>) -> io::Result<()> {
    let set = match (processor, FOUND.get()) {
        (Some(processor), _) => one(processor),
        (None, Some(Some(found))) => *found,
        (None, _) => return Ok(()),
    };
    Ok(sched_setaffinity(Some(process), &set)?)
}

fn one(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns the processors that a process started here may use, as the kernel lists them.
    fn allowed_to_child() -> String {
        let status = Command::new("cat").arg("/proc/self/status").output().unwrap().stdout;
        let status = String::from_utf8(status).unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap().to_owned()
    }

    fn first_found() -> usize {
        let found = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).find(|&processor| found.is_set(processor)).unwrap()
    }

    // On a separate thread, because the test pins the thread that runs it.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        record_processors();
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn children_of_a_pinned_thread_run_on_all_processors() {
        on_a_thread(|| {
            let (found, first) = (allowed_to_child(), first_found());
            keep_to(first).unwrap();
            assert_eq!(kept_processor(), Some(first));
            assert_eq!(allowed_to_child(), format!("Cpus_allowed_list:\t{first}"));
            assert_eq!(on_all_processors(allowed_to_child), found);
            assert_eq!(sched_getaffinity(None).unwrap(), one(first), "it keeps to it again");
            leave_processor();
            assert_eq!((allowed_to_child(), kept_processor()), (found, None));
        });
    }

    #[test]
    fn a_process_is_kept_and_let_go() {
        on_a_thread(|| {
            let found = sched_getaffinity(None).unwrap();
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = Pid::from_child(&child);
            keep_process(pid, Some(first_found())).unwrap();
            assert_eq!(sched_getaffinity(Some(pid)).unwrap(), one(first_found()));
            keep_process(pid, None).unwrap();
            assert_eq!(sched_getaffinity(Some(pid)).unwrap(), found);
            child.kill().unwrap();
            child.wait().unwrap();
        });
    }

    #[test]
    fn threads_keep_to_processors_only_where_there_is_one_for_each() {
        on_a_thread(|| {
            let found = sched_getaffinity(None).unwrap().count() as usize;
            assert_eq!(processors_for(1), [], "it goes where there is room");
            assert_eq!(processors_for(found + 1), []);
            let each = processors_for(found);
            assert_eq!(each.len(), if found > 1 { found } else { 0 });
            assert!(keep_to(CpuSet::MAX_CPU - 1).is_err() || found == CpuSet::MAX_CPU);
        });
    }
}
