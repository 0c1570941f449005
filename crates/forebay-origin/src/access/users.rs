//! Users in a file of Apache's `htpasswd`: `name:hash` on each line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_net::log::ErrorLog;

use super::hash::Hash;
use super::user_file::{Look, UserFile, UsersError, lines};

/// Keyed digest of a user's name and password.
pub type Digest = [u8; 32];

/// A user of a file.
pub struct User {
    hash: Hash,
    /// Digest of the right password, after a client has sent it.
    right: Mutex<Option<Digest>>,
}

impl User {
    fn new(hash: Hash) -> Self {
        Self { hash, right: Mutex::new(None) }
    }

    /// Returns true if `digest` is the stored digest of the right password. Returns false if no
    /// digest is stored yet.
    pub fn remembers(&self, digest: &Digest) -> bool {
        *self.right.lock().unwrap_or_else(PoisonError::into_inner) == Some(*digest)
    }

    /// Stores the digest of the right password.
    pub fn remember(&self, digest: Digest) {
        *self.right.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest);
    }
}

/// Hashes to compute for checking a password.
#[derive(Clone)]
pub struct PasswordCheck {
    /// The user; `None` if the file does not contain the name.
    pub user: Option<Arc<User>>,
    /// For each other kind and cost of hash in the file, one user with such a hash.
    others: Vec<Arc<User>>,
}

impl PasswordCheck {
    /// Returns true if there is no hash to compute, because the file has no user.
    pub fn is_empty(&self) -> bool {
        self.user.is_none() && self.others.is_empty()
    }

    /// Returns true if `fits` returns true for the user's hash. Otherwise calls `fits` once for
    /// each kind and cost of hash in the file.
    pub fn is_right(&self, mut fits: impl FnMut(&Hash) -> bool) -> bool {
        // Every refusal takes equally long, so that the time does not reveal which users exist.
        let is_right = self.user.as_ref().is_some_and(|user| fits(&user.hash));
        if !is_right {
            for other in &self.others {
                std::hint::black_box(fits(&other.hash));
            }
        }
        is_right
    }
}

/// Users of a file. A changed file is read again.
#[derive(Default)]
pub struct Users {
    file: UserFile,
    users: HashMap<Vec<u8>, Arc<User>>,
    /// For each kind and cost of hash, one user with such a hash. The cheapest comes first.
    classes: Vec<Arc<User>>,
}

impl Users {
    /// Creates the users of `file`, without reading it.
    pub fn new(file: PathBuf) -> Self {
        Self { file: UserFile::new(file), ..Self::default() }
    }

    /// Reads the users of `file`. Returns the errors of invalid lines, whose users cannot log in.
    /// If no line is valid, fails with the error of the first line.
    pub fn check(file: &Path) -> Result<Vec<UsersError>, UsersError> {
        Self::read(file).map(|(_, wrong)| wrong)
    }

    /// Returns those of `names` that are not in the file. Returns no names if the file cannot be
    /// read.
    pub fn absent<'n>(file: &Path, names: &'n [String]) -> Vec<&'n str> {
        let Ok((users, _)) = Self::read(file) else { return Vec::new() };
        let is_absent = |name: &&str| users.get(name.as_bytes()).is_none();
        names.iter().map(String::as_str).filter(is_absent).collect()
    }

    fn read(file: &Path) -> Result<(Self, Vec<UsersError>), UsersError> {
        let mut users = Self::new(file.to_owned());
        let text = users.file.read()?;
        let wrong = users.parse(&text);
        let mut wrong = wrong.into_iter().map(|line| UsersError::Line(file.to_owned(), line));
        match wrong.next() {
            Some(first) if users.users.is_empty() => Err(first),
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
                    errors.error(&UsersError::Line(self.file.path.clone(), line).to_string());
                }
                Ok(())
            }
            Look::Failed(error) => {
                self.users.clear();
                self.classes.clear();
                Err(error)
            }
        }
    }

    /// Returns the user of this name, or `None`.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// Returns the hashes to compute for checking a password of this user.
    pub fn check_of(&self, name: &[u8]) -> PasswordCheck {
        let user = self.get(name).cloned();
        let class = user.as_ref().map(|user| user.hash.class());
        let others = self.classes.iter().filter(|other| Some(other.hash.class()) != class);
        PasswordCheck { others: others.cloned().collect(), user }
    }

    /// Returns the hashes to compute for a user that is not in the file.
    pub fn check_of_unknown(&self) -> PasswordCheck {
        PasswordCheck { user: None, others: self.classes.clone() }
    }

    /// Takes the users from the text of the file. Returns the numbers of invalid lines, which
    /// contain no user.
    fn parse(&mut self, text: &[u8]) -> Vec<usize> {
        let mut wrong = Vec::new();
        let before = std::mem::take(&mut self.users);
        for (number, line) in lines(text) {
            match parse(line) {
                Some((name, hash)) => {
                    // The digest of a user is kept while the user's line is unchanged.
                    let kept = before.get(&name).filter(|user| user.hash == hash).cloned();
                    let user = kept.unwrap_or_else(|| Arc::new(User::new(hash)));
                    // If several lines have the same name, the first one counts, as in Apache.
                    self.users.entry(name).or_insert(user);
                }
                None => wrong.push(number),
            }
        }
        self.classes = self.users.values().cloned().collect();
        self.classes.sort_unstable_by_key(|user| user.hash.class());
        self.classes.dedup_by_key(|user| user.hash.class());
        wrong
    }
}

fn parse(line: &[u8]) -> Option<(Vec<u8>, Hash)> {
    let (user, rest) = line.split_at(memchr::memchr(b':', line)?);
    let hash = rest[1..].split(|&b| b == b':').next()?;
    let hash = Hash::parse(str::from_utf8(hash).ok()?)?;
    (!user.is_empty()).then(|| (user.to_vec(), hash))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::user_file::LARGEST;
    use super::*;

    const LINE: &str = "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n";

    #[test]
    fn a_file_that_cannot_be_read_is_opened_once_a_second() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        let (errors, _kept) = ErrorLog::kept();
        let mut users = Users::new(file.clone());
        assert!(users.look(1, &errors).is_err());
        fs::write(&file, LINE).unwrap();
        assert!(users.look(1, &errors).is_err(), "the error of this second");
        assert!(users.check_of(b"me").is_empty());
        users.look(2, &errors).unwrap();
        assert!(users.get(b"me").is_some());
        fs::remove_file(&file).unwrap();
        users.look(2, &errors).unwrap();
        assert!(users.look(3, &errors).is_err());
        assert!(users.get(b"me").is_none() && users.check_of(b"me").is_empty());
    }

    /// Hashes of all kinds with several costs. The tests use none of their passwords.
    const MIXED: &str = "cheap:$apr1$Eis92LRE$Q4BKiRZ.XcXCzIjNGwUXT.\n\
        other:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n\
        mean:$2y$04$DP2m6DW4hZh8trbDbtlzouX4rdlWtxKJhsXFv0/jFzbV9ufG9Q/Pq\n\
        dear:$2y$12$DP2m6DW4hZh8trbDbtlzouX4rdlWtxKJhsXFv0/jFzbV9ufG9Q/Pq\n";

    #[test]
    fn a_refusal_computes_the_same_hashes_whoever_the_user_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        fs::write(&file, MIXED).unwrap();
        let mut users = Users::new(file);
        users.look(1, &ErrorLog::kept().0).unwrap();
        let computed = |name: &str, is_right: bool| {
            let mut computed = Vec::new();
            let check = users.check_of(name.as_bytes());
            let outcome = check.is_right(|hash| {
                computed.push(hash.class());
                is_right
            });
            computed.sort_unstable();
            (outcome, computed)
        };
        let (is_right, of_nobody) = computed("nobody", false);
        assert!(!is_right);
        assert_eq!(of_nobody.len(), 3);
        for name in ["cheap", "other", "mean", "dear"] {
            assert_eq!(computed(name, false), (false, of_nobody.clone()), "{name}");
            let (is_right, of_right) = computed(name, true);
            assert!(is_right && of_right.len() == 1, "{name}");
        }
        assert!(!computed("nobody", true).0, "a hash of another user lets nobody in");
    }

    #[test]
    fn a_right_password_is_remembered_until_the_line_of_its_user_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        fs::write(&file, MIXED).unwrap();
        let mut users = Users::new(file.clone());
        let (errors, _kept) = ErrorLog::kept();
        users.look(1, &errors).unwrap();
        users.get(b"mean").unwrap().remember([1; 32]);
        users.get(b"dear").unwrap().remember([2; 32]);
        fs::write(&file, MIXED.replace("cheap:", "renamed:").replace("$12$", "$11$")).unwrap();
        users.look(2, &errors).unwrap();
        assert!(users.get(b"mean").unwrap().remembers(&[1; 32]));
        assert!(!users.get(b"mean").unwrap().remembers(&[2; 32]));
        assert!(!users.get(b"dear").unwrap().remembers(&[2; 32]));
        fs::remove_file(&file).unwrap();
        users.look(3, &errors).unwrap_err();
        fs::write(&file, MIXED).unwrap();
        users.look(5, &errors).unwrap();
        assert!(!users.get(b"mean").unwrap().remembers(&[1; 32]));
    }

    #[test]
    fn a_file_of_more_than_a_mebibyte_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        let comment = "#".repeat(LARGEST as usize - LINE.len());
        fs::write(&file, format!("{LINE}{comment}")).unwrap();
        assert!(Users::check(&file).is_ok());
        fs::write(&file, format!("{LINE}{comment}#")).unwrap();
        assert!(matches!(Users::check(&file), Err(UsersError::TooLarge(_))));
    }

    #[test]
    fn an_odd_line_is_told_and_refuses_the_file_only_where_no_line_is_a_user() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        fs::write(&file, format!("odd\n# users\n{LINE}old:crypted\n")).unwrap();
        let odd = Users::check(&file).unwrap();
        let lines = odd.iter().map(|error| match error {
            UsersError::Line(_, line) => *line,
            _ => 0,
        });
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines, [1, 4]);
        fs::write(&file, "# users\nold:crypted\n").unwrap();
        assert!(matches!(Users::check(&file), Err(UsersError::Line(_, 2))));
        fs::write(&file, "# nobody yet\n").unwrap();
        assert!(Users::check(&file).unwrap().is_empty());
    }
}
