//! A `forebay serve` for a test: it starts on a free port, and ends with the test.
#![allow(dead_code, reason = "each test file is a crate of its own and uses a part of this")]

pub mod checkers;
pub mod echo;
pub mod fastcgi;
pub mod gate;
pub mod hostile;
pub mod http3;
pub mod http3_bridge;
pub mod identity;
pub mod load;
pub mod proc;
pub mod websocket;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::process::{Exit, Process};
use rustix::process::Signal;

/// A running `forebay serve`.
pub struct Forebay {
    // Before the folder: fields are dropped in order.
    pub process: Process,
    pub address: SocketAddr,
    pub folder: Folder,
}

/// Serves one site with these routes, after `{tmp}` in them was replaced by the folder's path.
pub fn site(folder: Folder, routes: &str) -> Forebay {
    serve(folder, &format!("[[site]]\nlisten = \"127.0.0.1:0\"\n{routes}"))
}

/// Serves a complete configuration file, with two threads unless it says how many: the command line
/// would prevail.
pub fn serve(folder: Folder, configuration: &str) -> Forebay {
    if configuration.contains("threads = ") {
        return serve_file(folder, configuration);
    }
    let file = write_configuration(&folder, configuration);
    serve_arguments(folder, &["--threads", "2", file.to_str().unwrap()])
}

/// As [`serve`], with the number of threads in the file.
pub fn serve_file(folder: Folder, configuration: &str) -> Forebay {
    let file = write_configuration(&folder, configuration);
    serve_arguments(folder, &[file.to_str().unwrap()])
}

/// Writes `site.toml` after replacing `{tmp}`.
pub fn write_configuration(folder: &Folder, configuration: &str) -> std::path::PathBuf {
    folder.write("site.toml", configuration.replace("{tmp}", folder.path().to_str().unwrap()))
}

/// Runs `forebay serve` with these arguments.
///
/// If another program uses the chosen TCP port for UDP, starts again with another port.
pub fn serve_arguments(folder: Folder, arguments: &[&str]) -> Forebay {
    let mut tries = 0;
    let process = loop {
        match start_serving(command(arguments)) {
            Ok(process) => break process,
            Err(error) if tries < 5 && error.contains("uses this UDP port") => tries += 1,
            Err(error) => panic!("{error}"),
        }
    };
    find_address(process, folder)
}

/// Runs a command that becomes `forebay serve`.
pub fn serve_command(folder: Folder, command: Command) -> Forebay {
    find_address(start_serving(command).unwrap_or_else(|error| panic!("{error}")), folder)
}

const WORD: &str = "forebay: serving http";

fn start_serving(command: Command) -> Result<Process, String> {
    let mut process = Process::start(command);
    let outcome = process.wait_until("said where it serves", |process| {
        process.output().split_once(WORD).is_some_and(|(_, rest)| rest.contains('\n'))
    });
    outcome.map(|()| process)
}

fn find_address(process: Process, folder: Folder) -> Forebay {
    let output = process.output();
    let (_, rest) = output.split_once(WORD).unwrap();
    let (_, address) = rest.lines().next().unwrap().split_once("://").unwrap();
    let address = address.parse().expect("an address");
    Forebay { process, address, folder }
}

/// Returns the program under test, which `FOREBAY_PROGRAM` can name.
pub fn program() -> OsString {
    let built = || env!("CARGO_BIN_EXE_forebay").into();
    std::env::var_os("FOREBAY_PROGRAM").unwrap_or_else(built)
}

/// Returns the command without starting it.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("serve").args(arguments);
    command
}

/// Returns the result of `forebay check --start` for a configuration.
pub fn check_start(folder: &Folder, configuration: &str) -> Exit {
    let file = write_configuration(folder, configuration);
    let mut command = Command::new(program());
    command.args(["check", "--start"]).arg(file);
    let exit = Process::start(command).wait();
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
    exit
}

impl Forebay {
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns the address of the first listener with this scheme.
    pub fn listener(&mut self, scheme: &str) -> SocketAddr {
        let word = format!("forebay: serving {scheme}://");
        let find = |output: &str| {
            let (_, rest) = output.split_once(&word)?;
            let (address, _) = rest.split_once('\n')?;
            Some(address.parse().expect("an address"))
        };
        let is_there = |process: &Process| find(&process.output()).is_some();
        self.process.wait_until("said where it serves", is_there).unwrap();
        find(&self.output()).expect("it was there")
    }

    /// Sends GET over a new connection.
    pub fn get(&self, target: &str) -> Reply {
        self.connect().get(target)
    }

    /// As [`Forebay::get`], but returns an error if the connection is refused, or reset before the
    /// end of the reply.
    pub fn try_get(&self, target: &str) -> io::Result<Reply> {
        Client::try_connect(&self.address.into())?.try_get(target)
    }

    /// Sends these bytes over a new connection, and reads one reply.
    pub fn ask(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut client = self.connect();
        client.send(bytes);
        client.reply()
    }

    /// Returns standard output and standard error so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Waits until the output contains this text.
    pub fn wait_for_output(&mut self, text: &str) {
        self.process.wait_for_output(text);
    }

    /// Ends the server with SIGTERM, and checks that it ends well and leaves no process.
    pub fn stop(self) -> (Exit, Folder) {
        let exit = self.process.stop();
        assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
        assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
        assert!(!exit.output.contains("panicked"), "{}", exit.output);
        (exit, self.folder)
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }
}

/// Reads a reply until `text` has arrived. Returns all bytes.
pub fn read_until(client: &mut Client, text: &str) -> Vec<u8> {
    let mut came = Vec::new();
    while !came.ends_with(text.as_bytes()) {
        came.extend(client.bytes(1));
    }
    came
}

/// Returns true if the process exists and is no zombie.
pub fn is_alive(id: &str) -> bool {
    let id = id.trim();
    assert!(!id.is_empty(), "a process id");
    fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Returns a chunked body of these pieces.
pub fn chunked(pieces: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        body.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        body.extend_from_slice(piece);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    body
}

/// Returns this many bytes of a pattern that shows missing and duplicated parts.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}
