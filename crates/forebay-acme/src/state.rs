//! The directory that accounts, certificates and keys are kept in: `STATE/AUTHORITY/account.json`
//! and `STATE/AUTHORITY/NAME.pem`, which has a key and the chain behind it, so that both are
//! replaced at once. Where a certificate is for several names, NAME is the first in alphabetical
//! order and a hash of all, `a.example-0123456789abcdef.pem`. All are readable by their owner
//! alone, and written beside and renamed.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_conf::Acme;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// A certificate that was issued.
pub struct Issued {
    /// The certificate and those between it and its root, in PEM.
    pub chain: String,
    /// Its key, in PEM.
    pub key: String,
}

/// A certificate that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The certificate and those between it and its root, in PEM.
    pub chain: String,
    /// Its key, in PEM.
    pub key: String,
    /// From when it is valid.
    pub not_before: SystemTime,
    /// Until when it is valid.
    pub not_after: SystemTime,
}

/// Larger files are none of ours.
const LARGEST_FILE: u64 = 1 << 20;

/// The certificate for just the names of `acme`, if there is one.
pub fn load(acme: &Acme) -> Option<Stored> {
    // Older versions called a file of several names by the first that was configured.
    let first = acme.names.first().map_or("", String::as_str);
    let once = authority(acme).join(format!("{}.pem", file_name(first)));
    [certificate_file(acme), once].into_iter().find_map(|path| load_file(&path, acme))
}

fn load_file(path: &Path, acme: &Acme) -> Option<Stored> {
    if fs::metadata(path).ok()?.len() > LARGEST_FILE {
        return None;
    }
    parse(&fs::read_to_string(path).ok()?, acme)
}

/// A key and the chain behind it, where the first certificate is for just the names of `acme`.
pub fn parse(text: &str, acme: &Acme) -> Option<Stored> {
    let (key, chain) = text.split_at(text.find(CERTIFICATE)?);
    let first = CertificateDer::from_pem_slice(chain.as_bytes()).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&first).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let mut names: Vec<_> = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect();
    names.sort();
    let time = |seconds: i64| Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).ok()?));
    let validity = certificate.validity();
    (names == acme.sorted_names()).then_some(Stored {
        chain: chain.to_owned(),
        key: key.to_owned(),
        not_before: time(validity.not_before.timestamp())?,
        not_after: time(validity.not_after.timestamp())?,
    })
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

impl Issued {
    /// As it is kept: the key, and the chain behind it.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.key.trim_end(), self.chain)
    }
}

/// Keeps what was issued, as [`Issued::text`] has it.
pub fn save(acme: &Acme, text: &str) -> Result<(), String> {
    write(&certificate_file(acme), text)
}

/// What was kept of the account, as it was given.
pub fn account(acme: &Acme) -> Option<String> {
    fs::read_to_string(account_file(acme)).ok()
}

/// Keeps the account.
pub fn save_account(acme: &Acme, account: &str) -> Result<(), String> {
    write(&account_file(acme), account)
}

fn account_file(acme: &Acme) -> PathBuf {
    authority(acme).join("account.json")
}

fn certificate_file(acme: &Acme) -> PathBuf {
    let names = acme.sorted_names();
    let first = file_name(names.first().map_or("", String::as_str));
    let name = if names.len() > 1 { format!("{first}-{:016x}", hash(&names)) } else { first };
    authority(acme).join(format!("{name}.pem"))
}

/// FNV-1a of the names, each ended by a byte that none has: the same in every version, unlike the
/// standard library's.
fn hash(names: &[String]) -> u64 {
    let bytes = names.iter().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The directory of an authority.
fn authority(acme: &Acme) -> PathBuf {
    let url = acme.directory.strip_prefix("https://").unwrap_or(&acme.directory);
    acme.state.join(file_name(url))
}

/// As a name within a directory: neither `..` nor a path.
fn file_name(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
    let name: String = text.chars().map(kept).collect();
    name.trim_start_matches('.').to_owned()
}

/// Has a file hold `text`, or what it held before; readable by its owner alone.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let fail = |error: io::Error| {
        format!(
            "{} cannot be written ({error}): make the directory {}, writable by the user that \
             Forebay runs as, or name another by `state`",
            path.display(),
            directory.display()
        )
    };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(fail)?;
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
    fs::rename(&beside, path).map_err(fail)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use forebay_testkit::tls::Authority;

    use super::*;

    fn acme(state: &Path, names: &[&str]) -> Acme {
        Acme {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            directory: "https://ca.example:14000/dir".to_owned(),
            ca: None,
            email: None,
            state: state.to_owned(),
            challenge: None,
        }
    }

    #[test]
    fn what_is_saved_is_found_for_the_same_names_alone() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("not/there/yet");
        let identity = Authority::new("x").issue(&["a.example", "b.example"]);
        let issued = Issued { chain: identity.certificate, key: identity.key };
        let both = acme(&state, &["a.example", "b.example"]);
        assert_eq!(load(&both), None);
        save(&both, &issued.text()).unwrap();
        let found = load(&both).unwrap();
        assert_eq!(
            (found.chain.trim(), found.key.trim()),
            (issued.chain.trim(), issued.key.trim())
        );
        assert!(found.not_before < found.not_after);
        assert_eq!(load(&acme(&state, &["a.example"])), None);
        let file = state.join("ca.example_14000_dir/a.example-c4455bfa2900447a.pem");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(&file, "torn").unwrap();
        assert_eq!(load(&both), None);
        save_account(&both, "{}").unwrap();
        assert_eq!(account(&both).as_deref(), Some("{}"));
    }

    #[test]
    fn sites_that_share_their_first_name_have_files_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("x");
        let sets: [&[&str]; 4] =
            [&["a.x"], &["a.x", "b.x"], &["a.x", "c.x"], &["a.x", "b.x", "c.x"]];
        for names in sets {
            let identity = authority.issue(names);
            let issued = Issued { chain: identity.certificate, key: identity.key };
            save(&acme(directory.path(), names), &issued.text()).unwrap();
        }
        for names in sets {
            assert!(load(&acme(directory.path(), names)).is_some(), "{names:?}");
        }
        // The order of names does not matter.
        assert!(load(&acme(directory.path(), &["c.x", "b.x", "a.x"])).is_some());
    }

    #[test]
    fn a_file_that_was_called_by_the_first_name_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let identity = Authority::new("x").issue(&["a.x", "b.x"]);
        let both = acme(directory.path(), &["b.x", "a.x"]);
        let issued = Issued { chain: identity.certificate, key: identity.key };
        let once = super::authority(&both).join("b.x.pem");
        fs::create_dir_all(once.parent().unwrap()).unwrap();
        fs::write(once, issued.text()).unwrap();
        assert!(load(&both).is_some());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let acme = acme(Path::new("/dev/null/state"), &["a.example"]);
        let error = save_account(&acme, "{}").unwrap_err();
        assert!(error.contains("/dev/null/state"), "{error}");
    }

    #[test]
    fn names_of_files_stay_in_their_directory() {
        assert_eq!(file_name("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(file_name("a.example"), "a.example");
    }
}
