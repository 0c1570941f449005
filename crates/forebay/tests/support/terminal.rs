//! A pseudoterminal, and the screen that a terminal would show.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::termios::{LocalModes, tcgetattr, tcsetwinsize};

/// Limit of each wait.
const LIMIT: Duration = Duration::from_secs(30);

/// A terminal in which programs run.
pub struct Terminal {
    ours: File,
    theirs: OwnedFd,
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

/// A program that ends with its test.
pub struct Run(Child);

impl Run {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits until the program has stopped.
    pub fn wait_for_stop(&self) {
        let child = WaitId::Pid(Pid::from_child(&self.0));
        let end = Instant::now() + LIMIT;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while waitid(child.clone(), options).unwrap().is_none() {
            assert!(Instant::now() < end, "it has not stopped");
            std::thread::yield_now();
        }
    }

    /// Waits for the end of a program that has no terminal any more.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it still runs");
            std::thread::yield_now();
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Terminal {
    pub fn new(width: u16, height: u16) -> Self {
        let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).unwrap();
        // A program that another test starts must not keep this terminal open.
        for end in [&pair.master, &pair.slave] {
            fcntl_setfd(end, FdFlags::CLOEXEC).unwrap();
        }
        let parser = vt100::Parser::new(not_zero(height), not_zero(width), 0);
        Self { ours: pair.master.into(), theirs: pair.slave, parser, bytes: Vec::new() }
    }

    /// Starts a program whose three standard streams are the terminal.
    pub fn start(&self, command: &mut Command) -> Run {
        let stream = || Stdio::from(self.theirs.try_clone().unwrap());
        Run(command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap())
    }

    /// Waits for the end of a program, and reads what it writes.
    pub fn wait_for_end(&mut self, run: &mut Run) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = run.0.try_wait().unwrap() {
                self.drain();
                return status;
            }
            assert!(Instant::now() < end, "still runs: {}", self.text());
            self.read(Duration::from_millis(20));
        }
    }

    /// Types bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.ours.write_all(bytes).unwrap();
    }

    /// Changes the size. The program gets SIGWINCH.
    pub fn resize(&mut self, width: u16, height: u16) {
        let size =
            rustix::termios::Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.ours, size).unwrap();
        self.parser.screen_mut().set_size(not_zero(height), not_zero(width));
    }

    /// Reads until `is_wanted` returns true. Returns the text of the screen.
    pub fn wait_for(&mut self, is_wanted: impl Fn(&vt100::Screen) -> bool) -> String {
        let end = Instant::now() + LIMIT;
        while !is_wanted(self.parser.screen()) {
            assert!(Instant::now() < end, "not shown: {}", self.text());
            self.read(Duration::from_millis(50));
        }
        self.text()
    }

    /// Reads what programs that have ended wrote.
    pub fn drain(&mut self) {
        while self.read(Duration::ZERO) {}
    }

    fn read(&mut self, wait: Duration) -> bool {
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let count = poll(&mut [PollFd::new(&self.ours, PollFlags::IN)], Some(&wait)).unwrap_or(0);
        if count == 0 {
            return false;
        }
        let mut buffer = [0; 4096];
        let n = self.ours.read(&mut buffer).unwrap_or(0);
        self.bytes.extend_from_slice(&buffer[..n]);
        self.parser.process(&buffer[..n]);
        n > 0
    }

    pub fn screen(&mut self) -> &vt100::Screen {
        self.drain();
        self.parser.screen()
    }

    pub fn text(&self) -> String {
        self.parser.screen().contents()
    }

    /// Returns all bytes that programs wrote.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if the terminal shows typed characters.
    pub fn echoes(&self) -> bool {
        tcgetattr(self.theirs.as_fd()).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    fn size(&self) -> (u16, u16) {
        let (height, width) = self.parser.screen().size();
        (height.get(), width.get())
    }

    fn cells(&self) -> impl Iterator<Item = (u16, u16, &vt100::Cell)> {
        let screen = self.parser.screen();
        let (height, width) = self.size();
        let places = (0..height).flat_map(move |row| (0..width).map(move |column| (row, column)));
        places.filter_map(|(row, column)| Some((row, column, screen.cell(row, column)?)))
    }

    pub fn has_colour(&self) -> bool {
        let default = vt100::Color::Default;
        self.cells().any(|(_, _, cell)| cell.fgcolor() != default || cell.bgcolor() != default)
    }

    /// Returns the screen as an SVG picture.
    pub fn svg(&self) -> String {
        const CELL: (f64, f64) = (8.4, 17.0);
        let (height, width) = self.size();
        let (w, h) = (f64::from(width) * CELL.0 + 16.0, f64::from(height) * CELL.1 + 16.0);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w:.0} {h:.0}\" \
             font-family=\"DejaVu Sans Mono, monospace\" font-size=\"14\">\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#16181d\"/>\n"
        );
        for row in 0..height {
            let y = 8.0 + f64::from(row) * CELL.1 + 13.0;
            let mut cells = self.cells().filter(|(r, ..)| *r == row).peekable();
            while let Some((_, column, first)) = cells.next() {
                let style = |cell: &vt100::Cell| (cell.fgcolor(), cell.bold());
                let mut text = first.contents().to_owned();
                if text.trim().is_empty() {
                    continue;
                }
                while let Some((_, _, next)) = cells.peek() {
                    if style(next) != style(first) || next.contents().trim().is_empty() {
                        break;
                    }
                    text.push_str(next.contents());
                    cells.next();
                }
                let x = 8.0 + f64::from(column) * CELL.0;
                let length = text.chars().count() as f64 * CELL.0;
                let weight = if first.bold() { " font-weight=\"bold\"" } else { "" };
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let _ = writeln!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\" fill=\"{}\"{weight}>{text}</text>",
                    colour(first.fgcolor())
                );
            }
        }
        out + "</svg>\n"
    }
}

fn not_zero(n: u16) -> NonZero<u16> {
    NonZero::new(n).expect("a terminal has a size")
}

fn colour(colour: vt100::Color) -> &'static str {
    match colour {
        vt100::Color::Idx(1 | 9) => "#f07178",
        vt100::Color::Idx(2 | 10) => "#a5d66f",
        vt100::Color::Idx(3 | 11) => "#f2c55c",
        vt100::Color::Idx(5 | 13) => "#d78bf0",
        vt100::Color::Idx(6 | 14) => "#5fc9d8",
        _ => "#d5d9e0",
    }
}
