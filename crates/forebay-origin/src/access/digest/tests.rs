//! Requests with credentials that the tests compute themselves.

use std::net::SocketAddr;
use std::path::Path;

use forebay_wire::http1::{RequestHead, RequestParser};
use tempfile::TempDir;

use super::*;

const REALM: &str = "a \"realm\"";

fn hex(algorithm: Algorithm, text: &str) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match algorithm {
        Algorithm::Sha256 => hex(&Sha256::digest(text)),
        Algorithm::Md5 => hex(&Md5::digest(text)),
    }
}

/// Credentials of a client.
#[derive(Clone)]
struct DigestClient {
    algorithm: Algorithm,
    user: &'static str,
    password: &'static str,
    method: &'static str,
    uri: &'static str,
    nonce: String,
    count: u32,
}

impl DigestClient {
    fn new(algorithm: Algorithm, nonce: &str) -> Self {
        Self {
            algorithm,
            user: "ann",
            password: "p:ss w",
            method: "GET",
            uri: "/a?b=c",
            nonce: nonce.to_owned(),
            count: 1,
        }
    }

    /// Returns the value of `Authorization`.
    fn value(&self) -> String {
        let Self { algorithm, user, password, method, uri, nonce, count } = self;
        let secret = hex(*algorithm, &format!("{user}:{REALM}:{password}"));
        let asked = hex(*algorithm, &format!("{method}:{uri}"));
        let response = format!("{secret}:{nonce}:{count:08x}:c-nonce:auth:{asked}");
        let response = hex(*algorithm, &response);
        let realm = REALM.replace('"', "\\\"");
        let name = algorithm.name();
        format!(
            "Digest username=\"{user}\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{uri}\", \
             algorithm={name}, response=\"{response}\", qop=auth, nc={count:08x}, cnonce=\"c-nonce\""
        )
    }
}

fn request(authorization: &[String]) -> Request {
    let fields: String = authorization.iter().map(|v| format!("Authorization: {v}\r\n")).collect();
    let bytes = format!("GET /a?b=c HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
    let mut head = RequestHead::default();
    RequestParser::default().parse(&bytes, &mut head).unwrap();
    let address: SocketAddr = "192.0.2.7:4000".parse().unwrap();
    Request::new(bytes, head, address.into(), address)
}

fn users_in(file: &Path) -> Arc<Mutex<DigestUsers>> {
    let (users, odd) = DigestUsers::check(file).unwrap();
    assert!(odd.is_empty());
    Arc::new(Mutex::new(users))
}

/// Returns a file with the user `ann`, and the check for it.
fn check(algorithms: &[Algorithm]) -> (TempDir, DigestCheck) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let line = |algorithm: &Algorithm| {
        let hash = hex(*algorithm, &format!("ann:{REALM}:p:ss w"));
        format!("ann:{REALM}:{}\n", hash.to_uppercase())
    };
    let lines: String = algorithms.iter().map(line).collect();
    std::fs::write(&file, format!("# users\n{lines}bob:other:{}\n", "0".repeat(32))).unwrap();
    let settings = DigestAuth { file: file.clone(), realm: REALM.to_owned() };
    (folder, DigestCheck::new(settings, users_in(&file), Arc::new(Nonces::new())))
}

fn outcome(check: &DigestCheck, request: &Request) -> DigestOutcome {
    let users = check.users.lock().unwrap();
    match Credentials::of(request) {
        Some(credentials) => check.outcome(&credentials, request, &users),
        None => DigestOutcome::Wrong,
    }
}

fn is_right(check: &DigestCheck, client: &DigestClient) -> bool {
    outcome(check, &request(&[client.value()])) == DigestOutcome::Right
}

#[test]
fn a_right_password_is_accepted_once_for_each_count() {
    for algorithm in Algorithm::ALL {
        let (_folder, check) = check(&[algorithm]);
        let mut client = DigestClient::new(algorithm, &check.nonces.issue(REALM));
        assert!(is_right(&check, &client));
        assert!(outcome(&check, &request(&[client.value()])) == DigestOutcome::Stale, "replayed");
        client.count = 2;
        assert!(is_right(&check, &client));
        // An earlier access rule has accepted this request and has stored its count.
        let mut again = request(&[client.value()]);
        again.user = b"ann".to_vec();
        assert!(outcome(&check, &again) == DigestOutcome::Right);
        again.user = b"bob".to_vec();
        assert!(outcome(&check, &again) == DigestOutcome::Stale);
    }
}

#[test]
fn anything_else_is_refused() {
    let (_folder, check) = check(&Algorithm::ALL);
    let right = DigestClient::new(Algorithm::Sha256, &check.nonces.issue(REALM));
    for wrong in [
        DigestClient { password: "p:ss", ..right.clone() },
        DigestClient { password: "", ..right.clone() },
        DigestClient { user: "bob", ..right.clone() },
        DigestClient { user: "", ..right.clone() },
        DigestClient { method: "POST", ..right.clone() },
        DigestClient { uri: "/a", ..right.clone() },
        DigestClient { uri: "/", ..right.clone() },
        DigestClient { uri: "http://h/a?b=c", ..right.clone() },
    ] {
        assert!(
            outcome(&check, &request(&[wrong.value()])) == DigestOutcome::Wrong,
            "{}",
            wrong.value()
        );
    }
    let value = right.value();
    for (before, after) in [
        ("Digest ", "Basic "),
        ("qop=auth", "qop=auth-int"),
        ("qop=auth, ", ""),
        ("nc=00000001", "nc=1"),
        ("nc=00000001", "nc=+0000001"),
        ("nc=00000001", "nc=00000002"),
        ("cnonce=\"c-nonce\"", "cnonce=\"x\""),
        ("algorithm=SHA-256", "algorithm=MD5"),
        ("algorithm=SHA-256", "algorithm=SHA-256-sess"),
        ("algorithm=SHA-256, ", ""),
        ("username=\"ann\"", "username=\"ann\", username=\"bob\""),
        ("username=\"ann\"", "username=\"ann"),
        ("username=\"ann\"", "username*=UTF-8''ann"),
        ("realm=\"a \\\"realm\\\"\"", "realm=\"other\""),
        ("response=\"", "response=\"0"),
        ("qop=auth", "qop=auth, userhash=true"),
    ] {
        let changed = value.replacen(before, after, 1);
        assert_ne!(changed, value, "{before}");
        assert!(outcome(&check, &request(&[changed])) == DigestOutcome::Wrong, "{after}");
    }
    assert!(outcome(&check, &request(&[value.clone(), value.clone()])) == DigestOutcome::Wrong);
    assert!(outcome(&check, &request(&[])) == DigestOutcome::Wrong);
    for odd in
        ["Digest", "Digest ", "Digest =", "Digest ,", "Digest a", "Digest a=\"\\", "Digest a=b c"]
    {
        assert!(outcome(&check, &request(&[odd.to_owned()])) == DigestOutcome::Wrong, "{odd}");
    }
    // Spaces and quotes that the grammar permits.
    let spaced = value.replace(", ", "  ,\t").replace("qop=auth", "qop=\"auth\"");
    assert!(outcome(&check, &request(&[spaced])) == DigestOutcome::Right);
}

#[test]
fn a_foreign_nonce_is_stale_and_only_with_the_right_password() {
    let (_folder, check) = check(&[Algorithm::Md5]);
    for nonce in [Nonces::new().issue(REALM), check.nonces.issue("other"), "x".to_owned()] {
        let mut client = DigestClient::new(Algorithm::Md5, &nonce);
        assert!(outcome(&check, &request(&[client.value()])) == DigestOutcome::Stale);
        client.password = "wrong";
        assert!(outcome(&check, &request(&[client.value()])) == DigestOutcome::Wrong);
    }
}

#[test]
fn the_challenge_offers_the_algorithms_of_the_file() {
    for (algorithms, names) in [
        (&[Algorithm::Md5][..], &["MD5"][..]),
        (&[Algorithm::Sha256], &["SHA-256"]),
        (&Algorithm::ALL, &["SHA-256", "MD5"]),
        (&[], &["SHA-256"]),
    ] {
        let (_folder, check) = check(algorithms);
        let lines = check.challenge(&check.users.lock().unwrap(), true);
        let lines = String::from_utf8(lines).unwrap();
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), names.len());
        for (line, name) in lines.iter().zip(names) {
            let start = "WWW-Authenticate: Digest realm=\"a \\\"realm\\\"\", qop=\"auth\", ";
            assert!(line.starts_with(&format!("{start}algorithm={name}, nonce=\"")), "{line}");
            assert!(line.ends_with("\", stale=true"), "{line}");
        }
    }
}

#[test]
fn lines_without_a_user_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let hash = "0".repeat(32);
    for line in ["ann", "ann:r", "ann:r:x", ":r:HASH", "ann:r:HASHx", "ann:r:HASH:x"] {
        std::fs::write(&file, line.replace("HASH", &hash)).unwrap();
        let error = DigestUsers::check(&file).err().unwrap();
        assert!(
            error.to_string().ends_with("line 1: not a user with a realm and a hash"),
            "{line}"
        );
    }
    std::fs::write(&file, format!("bad\nann:r:{hash}\n")).unwrap();
    let (users, odd) = DigestUsers::check(&file).unwrap();
    assert_eq!(odd.len(), 1);
    assert!(users.has("r", Algorithm::Md5) && !users.has("r", Algorithm::Sha256));
    assert!(users.hash("r", b"ann", Algorithm::Md5).is_some());
    assert!(users.hash("R", b"ann", Algorithm::Md5).is_none());
}
