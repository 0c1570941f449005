//! A connection to the server.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_conf::RedisServer;
use forebay_trust::Trust;
use forebay_wire::resp::{self, RespError, RespValue};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::LARGEST_ENTRY;

/// Maximum size in bytes of the file `store_ca`.
const MAX_PEM: u64 = 1 << 20;
/// Maximum size of a reply: one entry, or the replies for all keys of one script.
const LARGEST_REPLY: usize = LARGEST_ENTRY + 64 * 1024;

/// Reason why a command failed.
#[derive(Debug)]
pub enum ConnectionError {
    /// The server cannot be reached.
    Away(String),
    /// The server does not answer in time. It may have run the command.
    Late(String),
    /// The server has answered with an error.
    Refused(String),
    /// The reply breaks the rules of the protocol.
    Broken(RespError),
}

/// Opens connections to a server.
pub struct Connector {
    server: RedisServer,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Connector {
    pub fn new(server: &RedisServer) -> Result<Self, String> {
        let tls = if server.is_tls { Some(tls(server)?) } else { None };
        Ok(Self { server: server.clone(), tls })
    }

    /// Connects, authenticates and selects the database. Returns only after the server has
    /// answered, so that no command is sent to a server that hangs. Such a server could run the
    /// command later, after Forebay has closed the connection.
    pub fn connect(&self, deadline: Instant) -> Result<RedisConnection, ConnectionError> {
        let RedisServer { host, port, database, user, password, .. } = &self.server;
        let away = |error: io::Error| ConnectionError::Away(format!("{host}:{port}: {error}"));
        let socket = connect(host, *port, deadline).map_err(away)?;
        let socket = TimedSocket { socket, deadline };
        let transport = match &self.tls {
            None => Transport::Plain(socket),
            Some((config, name)) => {
                let session = ClientConnection::new(config.clone(), name.clone());
                let session = session.map_err(io::Error::other).map_err(away)?;
                Transport::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        };
        let place = format!("{host}:{port}");
        let mut connection = RedisConnection { transport, received: Vec::new(), place };
        if let Some(password) = password {
            let login: Vec<&[u8]> = match user {
                Some(user) => vec![b"AUTH", user.as_bytes(), password.as_bytes()],
                None => vec![b"AUTH", password.as_bytes()],
            };
            connection.expect_ok(&login, deadline)?;
        }
        if *database > 0 {
            connection.expect_ok(&[b"SELECT", database.to_string().as_bytes()], deadline)?;
        } else if password.is_none() {
            connection.expect_ok(&[b"PING"], deadline)?;
        }
        Ok(connection)
    }
}

/// Returns the server's error text for the log, without the arguments of the command. In the error
/// for an unknown command, Redis repeats the arguments. The arguments of `AUTH` contain a password.
pub fn shown(error: &str) -> String {
    let error = error.split_once(", with args").map_or(error, |(error, _)| error);
    error.escape_debug().take(200).collect()
}

/// Returns the TLS settings, and the name that the server's certificate must contain.
fn tls(server: &RedisServer) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let trust = match &server.ca {
        None => Trust::of_machine(),
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let pem = forebay_conf::files::read(path, MAX_PEM).map_err(|error| failed(&error))?;
            let authorities = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
            let authorities = authorities.map_err(|error| failed(&error))?;
            Trust { authorities, are_servers: false }
        }
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = trust.verifier(provider.clone()).map_err(|error| error.to_string())?;
    let verifier = verifier.ok_or("no usable certificate of an authority; set `store_ca`")?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let name = ServerName::try_from(server.host.clone());
    Ok((Arc::new(config), name.map_err(|error| error.to_string())?))
}

/// Resolves `host`, and connects to the first address that answers.
fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
    }
    Ok(left)
}

/// A socket whose reads and writes end at the deadline at the latest, even if the server sends byte by byte.
struct TimedSocket {
    socket: TcpStream,
    deadline: Instant,
}

impl Read for TimedSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.deadline)?))?;
        self.socket.read(bytes)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.deadline)?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Transport {
    Plain(TimedSocket),
    Tls(Box<StreamOwned<ClientConnection, TimedSocket>>),
}

impl Transport {
    fn limit(&mut self, deadline: Instant) {
        match self {
            Self::Plain(socket) => socket.deadline = deadline,
            Self::Tls(stream) => stream.sock.deadline = deadline,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(bytes),
            Self::Tls(stream) => stream.read(bytes),
        }
    }
}

/// An open connection. After an error, the caller drops it.
pub struct RedisConnection {
    transport: Transport,
    received: Vec<u8>,
    place: String,
}

impl RedisConnection {
    /// Sends a command and returns the reply.
    pub fn call(
        &mut self,
        arguments: &[&[u8]],
        deadline: Instant,
    ) -> Result<RespValue, ConnectionError> {
        let place = self.place.clone();
        let away = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ConnectionError::Late(format!("{place}: no answer in time"))
            }
            _ => ConnectionError::Away(format!("{place}: {error}")),
        };
        self.transport.limit(deadline);
        let mut command = Vec::new();
        resp::append_command(arguments, &mut command);
        self.transport.send(&command).map_err(away)?;
        let mut bytes = [0; 16 * 1024];
        loop {
            let parsed = resp::parse(&self.received, LARGEST_REPLY);
            if let Some((reply, length)) = parsed.map_err(ConnectionError::Broken)? {
                self.received.drain(..length);
                return Ok(reply);
            }
            match self.transport.receive(&mut bytes) {
                Ok(0) => {
                    let why = format!("{place}: the server has closed the connection");
                    return Err(ConnectionError::Away(why));
                }
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(away(error)),
            }
        }
    }

    fn expect_ok(&mut self, command: &[&[u8]], deadline: Instant) -> Result<(), ConnectionError> {
        match self.call(command, deadline)? {
            RespValue::Error(text) => Err(ConnectionError::Refused(shown(&text))),
            _ => Ok(()),
        }
    }
}
