//! The store that several machines share.

use std::fmt;
use std::path::PathBuf;

use super::Secret;

/// The store of `[server]` (`store`, `store_key`, `store_ca`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStore {
    /// The place of the store.
    pub place: StorePlace,
    /// The secret that encrypts the entries. `None`: entries are not encrypted. A Redis store
    /// always has a key.
    pub key: Option<Secret>,
}

/// The location of a store: a directory or a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// A directory, usually of a file system that the machines share.
    Directory(PathBuf),
    /// A server that speaks the Redis protocol.
    Redis(RedisServer),
}

/// A server that speaks the Redis protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisServer {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Number of the database.
    pub database: u32,
    /// Name of the user. `None`: the default user.
    pub user: Option<String>,
    /// Password. `None`: the server asks for none.
    pub password: Option<Secret>,
    /// True if the connection uses TLS.
    pub is_tls: bool,
    /// Certificates of the trusted authorities. `None`: those that the machine trusts.
    pub ca: Option<PathBuf>,
}

/// Prints the place without the password.
impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Redis(RedisServer { host, port, database, is_tls, .. }) => {
                let scheme = if *is_tls { "rediss" } else { "redis" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}/{database}")
            }
        }
    }
}
