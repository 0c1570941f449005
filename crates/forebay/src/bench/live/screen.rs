//! Screen of the terminal: takes it for the live view, and restores it in every case.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

use super::view::View;
use super::widgets;

/// Switches to the alternate screen, which has no history.
const ENTER: &[u8] = b"\x1b[?1049h";
/// Hides the cursor and erases the screen.
const ERASE: &[u8] = b"\x1b[?25l\x1b[2J";
/// Resets colours, shows the cursor and switches back.
const LEAVE: &[u8] = b"\x1b[m\x1b[?25h\x1b[?1049l";

/// Size of a terminal that does not report its size.
const DEFAULT_SIZE: (u16, u16) = (80, 24);
/// Largest size that is drawn. A terminal may report any size, and a buffer has memory for each
/// cell.
const LARGEST: (u16, u16) = (500, 200);

/// Terminal that a view has taken, with its earlier modes. `None` while no view is shown. A panic
/// hook needs this value, so it is not part of [`Screen`].
static TAKEN: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// Terminal with a buffer for each frame.
type Frames = Terminal<CrosstermBackend<BufWriter<File>>>;

/// Screen that the live view has taken. Dropping it restores the terminal.
pub struct Screen {
    frames: Frames,
    output: File,
    area: Rect,
}

/// Returns true if this program may draw on the terminal of standard error, because it runs in the
/// foreground.
pub fn is_foreground() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp())
}

impl Screen {
    /// Switches a terminal to the alternate screen, and hides the cursor.
    pub fn enter(output: impl AsFd) -> io::Result<Self> {
        static HOOK: Once = Once::new();
        // Restore the terminal before a panic's message is printed. Otherwise, the message would
        // vanish with the alternate screen.
        HOOK.call_once(|| {
            let report = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                restore();
                report(info);
            }));
        });
        let output = File::from(output.as_fd().try_clone_to_owned()?);
        let area = area_of(&output);
        let modes = tcgetattr(&output)?;
        let mut quiet = modes.clone();
        // Do not show typed characters in the view. Ctrl-C and similar keys still send signals.
        quiet.local_modes.remove(LocalModes::ECHO);
        let taken = (output.try_clone()?, modes);
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
        let mut screen = Self { frames: frames(&output, area)?, output, area };
        tcsetattr(&screen.output, OptionalActions::Now, &quiet)?;
        screen.output.write_all(&[ENTER, ERASE].concat())?;
        Ok(screen)
    }

    /// Draws a frame in the current size of the terminal. Skips the frame if the terminal takes no
    /// output, as after Ctrl-S.
    pub fn draw(&mut self, view: &View) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.output, PollFlags::OUT)], Some(&now))? == 0 {
            return Ok(());
        }
        let area = area_of(&self.output);
        if area != self.area {
            // Do not call `Terminal::resize`: it asks the terminal for the cursor's position.
            self.area = area;
            self.frames = frames(&self.output, area)?;
            self.output.write_all(ERASE)?;
        }
        self.frames.draw(|frame| widgets::draw(frame, view))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Write::flush(self.frames.backend_mut());
        restore();
    }
}

/// Creates the buffers of frames of this size.
fn frames(output: &File, area: Rect) -> io::Result<Frames> {
    let backend = CrosstermBackend::new(BufWriter::new(output.try_clone()?));
    Terminal::with_options(backend, TerminalOptions { viewport: Viewport::Fixed(area) })
}

/// Restores the terminal, if a live view is on its screen.
fn restore() {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((mut output, modes)) = taken else { return };
    // Ignore errors, which mean that the terminal is closed.
    let _ = tcsetattr(&output, OptionalActions::Now, &modes);
    let _ = output.write_all(LEAVE);
}

fn area_of(terminal: &impl AsFd) -> Rect {
    let size = tcgetwinsize(terminal).map(|size| (size.ws_col, size.ws_row)).unwrap_or_default();
    let (width, height) = if size.0 == 0 || size.1 == 0 { DEFAULT_SIZE } else { size };
    Rect::new(0, 0, width.min(LARGEST.0), height.min(LARGEST.1))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::pty::openpty;

    use super::*;

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        let pair = openpty(None, None).unwrap();
        let echoes = || tcgetattr(&pair.slave).unwrap().local_modes.contains(LocalModes::ECHO);
        let screen = Screen::enter(&pair.slave).unwrap();
        assert!(!echoes());
        let mut master = File::from(pair.master);
        let drawing = std::thread::spawn(move || {
            let _screen = screen;
            panic!("the view has a fault");
        });
        assert!(drawing.join().is_err());
        assert!(echoes());
        let mut seen = [0; 256];
        let n = master.read(&mut seen).unwrap();
        assert!(seen[..n].windows(LEAVE.len()).any(|part| part == LEAVE), "{:?}", &seen[..n]);
        assert!(TAKEN.lock().unwrap().is_none());
    }
}
