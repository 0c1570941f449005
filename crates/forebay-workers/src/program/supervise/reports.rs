//! What guards say, and when they have ended.

use super::Event;
use crate::error::Exit;
use crate::sys;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Passes on what the guard says, as long as it lives.
pub(super) async fn report(id: u64, link: Rc<UnixStream>, events: mpsc::UnboundedSender<Event>) {
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
            if let Some(event) = understand(id, &String::from_utf8_lossy(&line)) {
                let _ = events.send(event);
            }
        }
    }
}

pub(super) fn understand(id: u64, line: &str) -> Option<Event> {
    let (word, number) = line.trim_end().split_once(' ')?;
    Some(match word {
        "pid" => Event::Started(id, number.parse().ok()?),
        "exit" => Event::ProgramEnded(id, Exit::Code(number.parse().ok()?)),
        "signal" => Event::ProgramEnded(id, Exit::Signal(number.parse().ok()?)),
        _ => return None,
    })
}

/// Waits until the guard has ended, and reaps it.
pub(super) async fn await_end(pidfd: OwnedFd, mut guard: Child) {
    let readable = sys::register(pidfd, Interest::READABLE);
    loop {
        if let Ok(pidfd) = &readable {
            let _ = pidfd.readable().await;
        }
        match guard.try_wait() {
            Ok(Some(_)) => return,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
