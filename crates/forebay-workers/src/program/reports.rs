//! Reads the reports that a guardian sends about its program, and waits for the guardian's end. A
//! guardian is the process that starts a server program, and ends all processes of the program.

use super::instance::Instance;
use crate::error::Exit;
use crate::supervisor::Event;
use crate::sys;
use forebay_process::Child;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Time limit for reading the last reports of a guardian after the guardian has ended.
const LAST_REPORTS: Duration = Duration::from_secs(1);

/// Reads the reports of a guardian until the guardian closes its end of `link`. Stores the
/// program's process id in `instance`, and sends the end of the program to `events`.
pub(super) async fn report(
    instance: Arc<Instance>,
    link: Rc<UnixStream>,
    events: mpsc::UnboundedSender<Event<()>>,
) {
    let mut text = Vec::new();
    let mut chunk = [0; 256];
    while link.readable().await.is_ok() {
        match link.try_read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => text.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            match Report::parse(&String::from_utf8_lossy(&line)) {
                Some(Report::Started(pid)) => instance.life.set_pid(pid),
                Some(Report::Ended(exit)) => {
                    let _ = events.send(Event::ProgramEnded(instance.id, exit));
                }
                None => {}
            }
        }
    }
}

/// A report of a guardian about its program.
enum Report {
    /// Process id of the program.
    Started(u32),
    Ended(Exit),
}

impl Report {
    fn parse(line: &str) -> Option<Report> {
        let (word, number) = line.trim_end().split_once(' ')?;
        Some(match word {
            "pid" => Report::Started(number.parse().ok()?),
            "exit" => Report::Ended(Exit::Code(number.parse().ok()?)),
            "signal" => Report::Ended(Exit::Signal(number.parse().ok()?)),
            _ => return None,
        })
    }
}

/// Waits until the guardian has ended, and reaps it. Then waits, for 1 s at most, until `reports`
/// has read the guardian's last reports.
pub(super) async fn await_end(
    at_end: OwnedFd,
    guardian: Rc<Child>,
    reports: JoinHandle<()>,
) -> Exit {
    let readable = sys::register(at_end, Interest::READABLE);
    let status = loop {
        if let Ok(at_end) = &readable {
            let _ = at_end.readable().await;
        }
        match guardian.reap() {
            Ok(Some(status)) => break status,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    // `reports` usually ends now, because the guardian has closed its end of the socket. This end
    // may still be open if another process holds it, or if the guardian lives after the helper was
    // killed. Aborting `reports` closes the gateway's end, and a living guardian then ends its
    // program.
    let task = reports.abort_handle();
    let _ = tokio::time::timeout(LAST_REPORTS, reports).await;
    task.abort();
    status.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Command, Stdio};

    #[test]
    fn the_programs_exit_is_known_before_its_guardians() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (link, its_link) = std::os::unix::net::UnixStream::pair().unwrap();
        link.set_nonblocking(true).unwrap();
        let mut process = Command::new("sh")
            .args(["-c", "echo pid 5 >&0; echo exit 7 >&0; exit 3"])
            .stdin(Stdio::from(OwnedFd::from(its_link)))
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&process);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        // The reports and the end are available at the same time.
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
        let (events, mut reported) = mpsc::unbounded_channel();
        let place = crate::program::ProcessAddress::Unix("/nowhere".into());
        let instance = Arc::new(Instance::new(1, (place, None), 0, u64::MAX));
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let link = Rc::new(UnixStream::from_std(link).unwrap());
            let reports = tokio::task::spawn_local(report(instance.clone(), link, events));
            let guardian = Rc::new(Child::Own(pid));
            assert_eq!(await_end(pidfd, guardian, reports).await, Exit::Code(3));
            assert_eq!(instance.life.pid(), 5);
            assert!(matches!(reported.try_recv(), Ok(Event::ProgramEnded(1, Exit::Code(7)))));
        });
        assert!(process.wait().is_err(), "it was reaped");
    }
}
