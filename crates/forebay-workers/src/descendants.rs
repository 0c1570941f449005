//! The processes that a process has started, with all that those have started.

use std::collections::HashMap;
use std::fs;

/// A process in /proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) pid: i32,
    parent: i32,
    /// Resident memory, in pages.
    pages: u64,
}

/// All descendants of `root` that live, without itself. Zombies are left out.
pub(crate) fn descendants(root: i32) -> Vec<Found> {
    let mut by_parent: HashMap<i32, Vec<Found>> = HashMap::new();
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    for folder in folders {
        let pid = folder.file_name().to_str().and_then(|name| name.parse().ok());
        let found =
            pid.and_then(|pid| read(pid, &fs::read_to_string(folder.path().join("stat")).ok()?));
        if let Some(found) = found {
            by_parent.entry(found.parent).or_default().push(found);
        }
    }
    let mut all = by_parent.remove(&root).unwrap_or_default();
    let mut at = 0;
    while let Some(next) = all.get(at) {
        let children = by_parent.remove(&next.pid);
        all.extend(children.into_iter().flatten());
        at += 1;
    }
    all
}

/// Resident memory of all descendants of `root`, in bytes. Pages that they share count for each.
pub(crate) fn memory_below(root: i32) -> u64 {
    let pages: u64 = descendants(root).iter().map(|found| found.pages).sum();
    pages * rustix::param::page_size() as u64
}

/// Whether the end of the process has begun: the kernel marks a process before it closes what that
/// has open, so that whoever sees a connection of it break finds the mark.
pub(crate) fn is_exiting(pid: u32) -> bool {
    /// PF_EXITING in proc_pid_stat(5), field 9.
    const EXITING: u32 = 4;
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

fn read(pid: i32, stat: &str) -> Option<Found> {
    // The name in parentheses may itself hold spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let pages = fields.nth(19)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(Found { pid, parent, pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn an_end_that_has_begun_is_seen_until_it_is_reaped_and_after() {
        assert!(!is_exiting(std::process::id()));
        let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        // It has closed what it had open, so it is about to be a zombie or is one.
        std::io::copy(child.stdout.as_mut().unwrap(), &mut std::io::sink()).unwrap();
        assert!(is_exiting(pid));
        child.wait().unwrap();
        assert!(is_exiting(pid));
    }

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name() {
        let zeros = "0 ".repeat(19);
        let found = read(5, &format!("5 (a) b) S 4 {zeros}7 0"));
        assert_eq!(found, Some(Found { pid: 5, parent: 4, pages: 7 }));
        assert_eq!(read(5, &format!("5 (a) Z 4 {zeros}7 0")), None);
        assert_eq!(read(5, "5 (a"), None);
    }

    #[test]
    fn a_child_and_its_memory_are_found() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let own = std::process::id() as i32;
        assert!(descendants(own).iter().any(|found| found.pid == child.id() as i32));
        // For a moment it has none of its own.
        let deadline = Instant::now() + Duration::from_secs(20);
        while memory_below(own) == 0 {
            assert!(Instant::now() < deadline, "its memory was never found");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!descendants(own).iter().any(|found| found.pid == child.id() as i32));
    }
}
