//! Users in a file of Apache's `htdigest`: `name:realm:hash` on each line.
//!
//! The hash is that of `name:realm:password`, in hexadecimal: MD5 as `htdigest` writes it, or
//! SHA-256.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_net::log::ErrorLog;

use super::user_file::{Look, UserFile, UsersError, lines};

/// An algorithm of the Digest scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256.
    Sha256,
    /// MD5, for old clients and files.
    Md5,
}

impl Algorithm {
    /// The algorithms, the preferred one first.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Md5];

    /// Returns the name in the fields of requests and replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA-256",
            Self::Md5 => "MD5",
        }
    }

    /// Returns the length of a hash in hexadecimal digits.
    pub fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Md5 => 32,
        }
    }
}

/// Lower-case hashes of a user, in the order of [`Algorithm::ALL`].
type Hashes = [Option<Vec<u8>>; 2];

/// A line of a file.
struct DigestLine<'t> {
    name: &'t [u8],
    realm: &'t [u8],
    hash: &'t [u8],
    algorithm: Algorithm,
}

/// Users of a file. A changed file is read again.
#[derive(Default)]
pub struct DigestUsers {
    file: UserFile,
    /// The users of each realm.
    realms: HashMap<Vec<u8>, HashMap<Vec<u8>, Hashes>>,
}

impl DigestUsers {
    /// Creates the users of `file`, without reading it.
    pub fn new(file: PathBuf) -> Self {
        Self { file: UserFile::new(file), ..Self::default() }
    }

    /// Reads the users of `file`. Returns the errors of invalid lines, whose users cannot log in.
    /// If no line is valid, fails with the error of the first line.
    pub fn check(file: &Path) -> Result<(Self, Vec<UsersError>), UsersError> {
        let mut users = Self::new(file.to_owned());
        let text = users.file.read()?;
        let wrong = users.parse(&text).into_iter();
        let mut wrong = wrong.map(|line| UsersError::DigestLine(file.to_owned(), line));
        match wrong.next() {
            Some(first) if users.realms.is_empty() => Err(first),
            first => Ok((users, first.into_iter().chain(wrong).collect())),
        }
    }

    /// Uses the text that a load has read, if this process may not read the file.
    pub fn take_text(&mut self, text: Vec<u8>) {
        self.file.take_text(text);
    }

    /// Checks once a second if the file has changed, and reads it again if so. Logs the first
    /// invalid line. If the file cannot be read, no user has access.
    pub fn look(&mut self, second: u64, errors: &ErrorLog) -> Result<(), Arc<UsersError>> {
        match self.file.look(second) {
            Look::Same => Ok(()),
            Look::Changed(text) => {
                if let Some(line) = self.parse(&text).first().copied() {
                    let error = UsersError::DigestLine(self.file.path.clone(), line);
                    errors.error(&error.to_string());
                }
                Ok(())
            }
            Look::Failed(error) => {
                self.realms.clear();
                Err(error)
            }
        }
    }

    /// Returns the hash of a user in a realm, or `None` if the file has no such hash.
    pub fn hash(&self, realm: &str, user: &[u8], algorithm: Algorithm) -> Option<&[u8]> {
        self.realms.get(realm.as_bytes())?.get(user)?[algorithm as usize].as_deref()
    }

    /// Returns true if a user of the realm has a hash of this algorithm.
    pub fn has(&self, realm: &str, algorithm: Algorithm) -> bool {
        let users = self.realms.get(realm.as_bytes());
        users.is_some_and(|users| users.values().any(|user| user[algorithm as usize].is_some()))
    }

    /// Takes the users from the text of the file. Returns the numbers of invalid lines.
    fn parse(&mut self, text: &[u8]) -> Vec<usize> {
        self.realms.clear();
        let mut wrong = Vec::new();
        for (number, line) in lines(text) {
            let Some(DigestLine { name, realm, hash, algorithm }) = parse(line) else {
                wrong.push(number);
                continue;
            };
            let users = self.realms.entry(realm.to_vec()).or_default();
            let hashes = users.entry(name.to_vec()).or_default();
            // If several lines have the same user, realm and algorithm, the first one counts, as in
            // Apache.
            hashes[algorithm as usize].get_or_insert_with(|| hash.to_ascii_lowercase());
        }
        wrong
    }
}

fn parse(line: &[u8]) -> Option<DigestLine<'_>> {
    let mut parts = line.split(|&b| b == b':');
    let (name, realm, hash) = (parts.next()?, parts.next()?, parts.next()?);
    let algorithm = Algorithm::ALL.into_iter().find(|one| one.digits() == hash.len())?;
    let is_right = !name.is_empty() && hash.iter().all(u8::is_ascii_hexdigit);
    (is_right && parts.next().is_none()).then_some(DigestLine { name, realm, hash, algorithm })
}
