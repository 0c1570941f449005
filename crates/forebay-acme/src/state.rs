//! Reads and writes the files of accounts, certificates and keys: `STATE/AUTHORITY/account.json`
//! and `STATE/AUTHORITY/NAME.pem`. STATE is the configured directory; AUTHORITY is made from the
//! authority's URL.
//!
//! A `.pem` file contains the key, then the chain, so that one rename replaces both. NAME is the
//! certificate's name. For several names, NAME is the first name in alphabetical order plus a hash
//! of all names: `a.example-0123456789abcdef.pem`. Only the owner can read the files. Forebay
//! writes each file under a temporary name and then renames it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_conf::{Acme, files};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;

/// Certificate that the authority has just issued.
pub struct Issued {
    /// The certificate and its intermediate certificates, in PEM.
    pub chain: String,
    /// Private key of the certificate, in PEM.
    pub key: String,
}

/// Certificate read from the state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The certificate and its intermediate certificates, in PEM.
    pub chain: String,
    /// Private key of the certificate, in PEM.
    pub key: String,
    /// Start of the validity.
    pub not_before: SystemTime,
    /// End of the validity.
    pub not_after: SystemTime,
}

/// Maximum size of a certificate file in bytes. Forebay itself writes much smaller files.
const LARGEST_FILE: u64 = 1 << 20;

/// Returns the saved certificate. Returns `None` if there is no readable certificate for exactly
/// the names of `acme`.
pub fn load(acme: &Acme) -> Option<Stored> {
    // A certificate for several names is usually in a file with a hash of all names. Also look for
    // it in the file that is named after only the first configured name.
    let first = acme.names.first().map_or("", String::as_str);
    let once = authority(acme).join(format!("{}.pem", file_name(first)));
    [certificate_file(acme), once].into_iter().find_map(|path| load_file(&path, acme))
}

fn load_file(path: &Path, acme: &Acme) -> Option<Stored> {
    let bytes = files::read(path, LARGEST_FILE).ok()?;
    if bytes.len() as u64 > LARGEST_FILE {
        return None;
    }
    parse(&String::from_utf8(bytes).ok()?, acme)
}

/// Parses a key and its chain. Returns `None` if the first certificate is not for exactly the names
/// of `acme`.
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
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
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

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

impl Issued {
    /// Returns the content of the file: the key, then the chain.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.key.trim_end(), self.chain)
    }
}

impl Stored {
    /// Returns the content of the file: the key, then the chain, as `Issued::text` does.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.key.trim_end(), self.chain)
    }
}

/// Saves a certificate in the format of `Issued::text`.
pub fn save(acme: &Acme, text: &str) -> Result<(), String> {
    write(&certificate_file(acme), text)
}

/// Returns the saved account credentials as the client library serialized them. Returns `None` if
/// no account is saved.
pub fn account(acme: &Acme) -> Option<String> {
    String::from_utf8(files::read(&account_file(acme), LARGEST_FILE).ok()?).ok()
}

pub fn save_account(acme: &Acme, account: &str) -> Result<(), String> {
    write(&account_file(acme), account)
}

fn account_file(acme: &Acme) -> PathBuf {
    authority(acme).join("account.json")
}

fn certificate_file(acme: &Acme) -> PathBuf {
    authority(acme).join(format!("{}.pem", certificate_name(acme)))
}

/// Returns the name under which a certificate is saved.
pub fn certificate_name(acme: &Acme) -> String {
    let names = acme.sorted_names();
    let first = file_name(names.first().map_or("", String::as_str));
    if names.len() > 1 { format!("{first}-{:016x}", hash(&names)) } else { first }
}

/// Returns the FNV-1a hash of the names, each followed by a NUL byte. The standard library's hash
/// may change between versions, but a file name must not.
fn hash(names: &[String]) -> u64 {
    let bytes = names.iter().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn authority(acme: &Acme) -> PathBuf {
    acme.state.join(authority_name(acme))
}

/// Returns the name of an authority, for use in paths.
pub fn authority_name(acme: &Acme) -> String {
    file_name(acme.directory.strip_prefix("https://").unwrap_or(&acme.directory))
}

/// Replaces characters so that the text is a plain file name: neither `..` nor a path.
fn file_name(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
    let name: String = text.chars().map(kept).collect();
    name.trim_start_matches('.').to_owned()
}

/// Writes a file that only its owner can read. After a crash, the file has either the old or the
/// new content.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let fail = |error: io::Error| {
        format!(
            "cannot write {} ({error}): create the directory {}, writable by the user that \
             Forebay runs as, or configure another directory with `state`",
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
            dns_hook: Vec::new(),
            profile: None,
            dns_wait: Duration::ZERO,
            external_account: None,
        }
    }

    #[test]
    fn saved_certificates_are_found_only_for_the_same_names() {
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
