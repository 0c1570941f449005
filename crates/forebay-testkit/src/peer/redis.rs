//! Redis: <https://redis.io/docs/>.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use super::installed;
use crate::DEADLINE;
use crate::folder::Folder;
use crate::port::free_port;
use crate::process::Process;

/// Redis that keeps nothing on disk, with a password.
#[derive(Debug)]
pub struct Redis {
    process: Option<Process>,
    program: PathBuf,
    folder: Folder,
    port: u16,
    arguments: Vec<String>,
}

impl Redis {
    /// The password of the default user.
    pub const PASSWORD: &str = "p@ss:w/rd";

    /// Starts Redis. `tls` is the certificate chain and the key of the server. With `tls`, Redis
    /// accepts only TLS. If Redis is not installed, reports the test as skipped and returns `None`.
    pub fn start(tls: Option<(&str, &str)>) -> Option<Self> {
        let program = installed("redis-server")?;
        let folder = Folder::new();
        let port = free_port();
        let mut arguments = vec!["--bind".to_owned(), "127.0.0.1".to_owned()];
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        add("--save", String::new());
        add("--requirepass", Self::PASSWORD.to_owned());
        add("--dir", folder.path().display().to_string());
        if let Some((chain, key)) = tls {
            add("--port", "0".to_owned());
            add("--tls-port", port.to_string());
            add("--tls-cert-file", folder.write("chain.pem", chain).display().to_string());
            add("--tls-key-file", folder.write("key.pem", key).display().to_string());
            add("--tls-auth-clients", "no".to_owned());
        } else {
            add("--port", port.to_string());
        }
        let mut redis = Self { process: None, program, folder, port, arguments };
        redis.restart();
        Some(redis)
    }

    /// Ends Redis at once (SIGKILL). All data is lost.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills Redis if it runs, then starts Redis without data on the same port.
    pub fn restart(&mut self) {
        self.kill();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(self.folder.path());
        let mut process = Process::start(command);
        process.wait_until_listening(self.address());
        self.process = Some(process);
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the URL of a database, with the password.
    pub fn url(&self, database: u32) -> String {
        let password: String = Self::PASSWORD.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!("redis://:{password}@{}/{database}", self.address())
    }

    /// Sends commands over a new connection, and returns the reply to the last command as Redis
    /// writes it. Use this only for replies of one line, and without TLS.
    ///
    /// # Panics
    /// Panics if Redis does not answer.
    pub fn send(&self, commands: &[&[&[u8]]]) -> String {
        let mut socket = TcpStream::connect(self.address()).expect("a connection to Redis");
        socket.set_read_timeout(Some(DEADLINE)).expect("a time limit");
        let login: &[&[u8]] = &[b"AUTH", Self::PASSWORD.as_bytes()];
        let mut last = String::new();
        for command in std::iter::once(&login).chain(commands) {
            let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
            for argument in *command {
                bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
                bytes.extend_from_slice(argument);
                bytes.extend_from_slice(b"\r\n");
            }
            socket.write_all(&bytes).expect("Redis reads");
            last.clear();
            while !last.ends_with("\r\n") {
                let mut byte = [0];
                socket.read_exact(&mut byte).expect("Redis answers");
                last.push(byte[0].into());
            }
        }
        last.trim_end().to_owned()
    }
}
