//! The live view of `forebay bench`, in a terminal that the test reads.

#[path = "support/terminal.rs"]
mod terminal;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use terminal::Terminal;

/// Starts a server that answers every read with `reply`. Returns its address.
fn server(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    if stream.write_all(reply).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Returns the command of a run that paces its requests, so that it takes little CPU time.
fn bench(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(env!("CARGO_BIN_EXE_forebay")).arg("bench").arg(url);
    command.args(["-c", "2", "-t", "1", "-r", "500"]).args(args);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command
}

/// Asserts that the terminal is as it was before the run, apart from the report.
fn assert_restored(terminal: &mut Terminal) {
    assert!(!terminal.screen().alternate_screen(), "{}", terminal.text());
    assert!(!terminal.screen().hide_cursor());
    assert!(terminal.echoes(), "typed characters are not shown");
}

#[test]
fn the_view_shows_the_run_and_restores_the_terminal_on_ctrl_c() {
    let url = format!("http://{}/path", server(HELLO));
    let mut terminal = Terminal::new(80, 24);
    let mut run = terminal.start(&mut bench(&url, &["-d", "60"]));
    let view = terminal.wait_for(|screen| {
        let text = screen.contents();
        screen.alternate_screen() && text.contains("200") && text.contains("p99 ")
    });
    for part in ["GET http://", "Requests/s", "Latency", "Distribution", "0 failed", "of 60.0 s"] {
        assert!(view.contains(part), "{part}: {view}");
    }
    assert!(!terminal.echoes());
    // The view fills a terminal of another size, even a tiny one.
    for (width, height) in [(100, 30), (9, 3), (1, 1), (80, 24)] {
        terminal.resize(width, height);
        if width > 50 {
            terminal.wait_for(|screen| {
                let hint = screen.contents().lines().last().is_some_and(|l| l.contains("Ctrl-C"));
                hint && screen.contents().lines().count() == usize::from(height)
            });
        }
    }
    terminal.write(b"\x03");
    terminal.wait_for(|screen| screen.contents().contains("(interrupted)"));
    assert_eq!(terminal.wait_for_end(&mut run).code(), Some(130));
    assert_restored(&mut terminal);
}

#[test]
fn signals_and_a_closed_terminal_end_the_view() {
    let url = format!("http://{}/", server(HELLO));
    for (signal, code, by) in
        [(Signal::TERM, Some(143), None), (Signal::QUIT, None, Some(Signal::QUIT.as_raw()))]
    {
        let mut terminal = Terminal::new(80, 24);
        let mut run = terminal.start(&mut bench(&url, &["-d", "60"]));
        terminal.wait_for(vt100::Screen::alternate_screen);
        run.signal(signal);
        let status = terminal.wait_for_end(&mut run);
        assert_eq!((status.code(), status.signal()), (code, by));
        terminal.wait_for(|screen| !screen.alternate_screen());
        assert_restored(&mut terminal);
    }
    // The terminal hangs up, as with a closed window.
    let mut terminal = Terminal::new(80, 24);
    let mut run = terminal.start(&mut bench(&url, &["-d", "60"]));
    terminal.wait_for(vt100::Screen::alternate_screen);
    drop(terminal);
    let status = run.wait();
    assert_eq!(status.code(), Some(129), "{status}");
}

#[test]
fn a_stopped_run_leaves_the_screen_and_takes_it_again() {
    let url = format!("http://{}/", server(HELLO));
    let mut terminal = Terminal::new(80, 24);
    let mut run = terminal.start(&mut bench(&url, &["-d", "60"]));
    terminal.wait_for(vt100::Screen::alternate_screen);
    run.signal(Signal::TSTP);
    terminal.wait_for(|screen| !screen.alternate_screen());
    assert_restored(&mut terminal);
    run.wait_for_stop();
    run.signal(Signal::CONT);
    terminal.wait_for(|screen| screen.alternate_screen() && screen.contents().contains("Latency"));
    run.signal(Signal::INT);
    assert_eq!(terminal.wait_for_end(&mut run).code(), Some(130));
    terminal.wait_for(|screen| screen.contents().contains("(interrupted)"));
    assert_restored(&mut terminal);
}

#[test]
fn text_of_the_user_and_of_the_server_cannot_control_the_terminal() {
    // The reply has a title sequence, a sequence of C1, and one that the terminal would answer.
    let address = server(b"HTTP/1.1 200 \x1b]0;owned\x07\r\nContent-Length: x\x1b[6n\r\n\r\n");
    let url = format!("http://{address}/");
    let mut terminal = Terminal::new(80, 24);
    let run = &mut bench(&url, &["-n", "20", "-X", "A\x1b]0;owned\x07"]);
    let mut refused = terminal.start(run);
    assert_eq!(terminal.wait_for_end(&mut refused).code(), Some(2));
    let mut run = terminal.start(&mut bench(&url, &["-d", "2"]));
    terminal.wait_for(|screen| screen.contents().contains("first failure:"));
    assert_eq!(terminal.wait_for_end(&mut run).code(), Some(1));
    terminal.wait_for(|screen| screen.contents().contains("the first failure was"));
    let bytes = terminal.bytes();
    for hostile in [&b"owned\x07"[..], b"\x1b]0", b"\x1b[6n", b"\xc2\x9b"] {
        assert!(!bytes.windows(hostile.len()).any(|part| part == hostile), "{hostile:?}");
    }
}

#[test]
fn the_view_keeps_away_from_terminals_that_do_not_want_it() {
    let url = format!("http://{}/", server(HELLO));
    let plain = |command: &mut Command| {
        let mut terminal = Terminal::new(80, 24);
        let mut run = terminal.start(command);
        assert_eq!(terminal.wait_for_end(&mut run).code(), Some(0));
        let bytes = terminal.bytes();
        assert!(!bytes.windows(8).any(|part| part == b"\x1b[?1049h"), "{}", terminal.text());
    };
    let args = ["-d", "1"];
    plain(bench(&url, &args).arg("--no-live"));
    plain(bench(&url, &args).args(["--json", "-"]));
    plain(bench(&url, &args).arg("-q"));
    plain(bench(&url, &args).env("TERM", "dumb"));
    let output =
        Command::new(env!("CARGO_BIN_EXE_forebay")).args(["bench", &url, "--live"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("must be a terminal"), "{output:?}");
    // NO_COLOR keeps the view, without colours.
    let mut terminal = Terminal::new(80, 24);
    let mut run = terminal.start(bench(&url, &["-d", "60"]).env("NO_COLOR", "1"));
    terminal.wait_for(|screen| screen.contents().contains("200"));
    let coloured = terminal.has_colour();
    terminal.write(b"\x03");
    assert_eq!(terminal.wait_for_end(&mut run).code(), Some(130));
    assert!(!coloured);
}

/// With PICTURE=FILE.svg, writes the picture of the manual (`scripts/picture-live`).
#[test]
fn the_screen_can_be_written_as_a_picture() {
    let url = format!("http://{}/index.html", server(HELLO));
    let file = std::env::var_os("PICTURE");
    let mut terminal = Terminal::new(100, 30);
    let mut command = bench(&url, &["-d", "30"]);
    let wanted = if file.is_some() { "20." } else { "1." };
    let mut run = terminal.start(&mut command);
    terminal.wait_for(|screen| {
        let contents = screen.contents();
        contents.contains("200") && contents.contains(&format!(" {wanted}"))
    });
    let svg = terminal.svg();
    terminal.write(b"\x03");
    assert_eq!(terminal.wait_for_end(&mut run).code(), Some(130));
    roxmltree::Document::parse(&svg).expect("the picture is XML");
    assert!(svg.contains("Requests/s"), "{svg}");
    if let Some(file) = file {
        std::fs::write(file, svg).unwrap();
    }
}
