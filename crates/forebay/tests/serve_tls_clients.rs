//! HTTPS and HTTP/2 with clients of other projects: curl, nghttp, and sslscan, which tries all
//! versions and ciphers.

mod support;

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::installed;
use forebay_testkit::tls::Authority;

use support::{Forebay, serve};

/// A site with a small file, a large one, and replies that are compressed.
fn site() -> Forebay {
    site_with("")
}

/// As [`site`], with additional keys of `tls`.
fn site_with(tls: &str) -> Forebay {
    let folder = Folder::new();
    let authority = Authority::new("of the test");
    let identity = authority.issue(&["localhost"]);
    folder.write("ca.pem", &authority.pem);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    folder.write("htdocs/small.txt", "small\n");
    folder.write("htdocs/large.txt", "A line of a large file.\n".repeat(100_000));
    serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"https://127.0.0.1:0\"\n\
             tls = {{ certificate = \"cert.pem\", key = \"key.pem\"{tls} }}\n\
             [[site.route]]\nfiles = \"htdocs\"\ncompress = true\n"
        ),
    )
}

/// Runs a client with an address below the site. Returns its standard output, or `None` if it is
/// not installed.
fn run(forebay: &Forebay, program: &str, arguments: &[&str], path: &str) -> Option<Vec<u8>> {
    let program = match program {
        // Part of the same package.
        "nghttp" => installed("h2load")?.with_file_name("nghttp"),
        program => installed(program)?,
    };
    let url = format!("https://localhost:{}{path}", forebay.address.port());
    let output = Command::new(program).args(arguments).arg(url).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(output.stdout)
}

#[test]
fn curl_agrees_on_either_protocol_and_gets_what_there_is() {
    let forebay = site();
    let ca = forebay.folder.path().join("ca.pem");
    let large = "A line of a large file.\n".repeat(100_000).into_bytes();
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let common = ["--silent", "--show-error", "--max-time", "30", "--resolve"];
        let here = format!("localhost:{}:127.0.0.1", forebay.address.port());
        let mut arguments = common.to_vec();
        arguments.extend([here.as_str(), "--cacert", ca.to_str().unwrap(), flag]);
        let written = [&arguments[..], &["--write-out", "%{http_version} %{http_code}"]].concat();
        let Some(said) = run(&forebay, "curl", &written, "/small.txt") else { return };
        assert_eq!(String::from_utf8(said).unwrap(), format!("small\n{version} 200"));
        assert!(run(&forebay, "curl", &arguments, "/large.txt").unwrap() == large);
        let compressed = [&arguments[..], &["--compressed"]].concat();
        assert!(run(&forebay, "curl", &compressed, "/large.txt").unwrap() == large);
        let coded = [&arguments[..], &["-H", "Accept-Encoding: gzip"]].concat();
        let coded = run(&forebay, "curl", &coded, "/large.txt").unwrap();
        assert!(coded.starts_with(&[0x1f, 0x8b]) && coded.len() < large.len() / 10);
    }
    forebay.stop();
}

#[test]
fn nghttp_multiplexes_over_tls() {
    let forebay = site();
    let arguments = ["--no-verify-peer", "--stat", "--null-out", "--multiply=50", "--timeout=30"];
    let Some(said) = run(&forebay, "nghttp", &arguments, "/small.txt") else { return };
    let said = String::from_utf8(said).unwrap();
    let replies = said.lines().filter(|line| line.contains(" 200 ") && line.contains("/small.txt"));
    assert_eq!(replies.count(), 50, "{said}");
    forebay.stop();
}

/// Returns the version, cipher suite and group of a handshake by OpenSSL, or `None` if it fails.
fn handshake(forebay: &Forebay, arguments: &[&str]) -> Option<String> {
    let target = format!("127.0.0.1:{}", forebay.address.port());
    let output = Command::new(installed("openssl")?)
        .args(["s_client", "-connect", &target, "-servername", "localhost"])
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let new = text.lines().find(|line| line.starts_with("New, TLS"))?;
    let key = text.lines().find(|line| line.starts_with("Server Temp Key")).unwrap_or_default();
    Some(format!("{new}; {key}"))
}

#[test]
fn versions_ciphers_and_curves_can_be_restricted() {
    if installed("openssl").is_none() {
        return;
    }
    let forebay = site_with(", min_version = \"1.3\", curves = [\"P-384\"]");
    assert_eq!(handshake(&forebay, &["-tls1_2"]), None);
    let made = handshake(&forebay, &["-groups", "X25519:P-384"]).unwrap();
    assert!(made.contains("TLSv1.3") && made.contains("secp384r1"), "{made}");
    assert_eq!(handshake(&forebay, &["-groups", "X25519"]), None);
    forebay.stop();
    let forebay = site_with(
        ", ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\", \"ECDHE-ECDSA-AES256-GCM-SHA384\", \
         \"ECDHE-RSA-AES256-GCM-SHA384\"]",
    );
    let made = handshake(&forebay, &[]).unwrap();
    assert!(made.contains("TLS_CHACHA20_POLY1305_SHA256"), "{made}");
    let made = handshake(&forebay, &["-tls1_2"]).unwrap();
    assert!(made.contains("-AES256-GCM-SHA384"), "{made}");
    assert_eq!(handshake(&forebay, &["-ciphersuites", "TLS_AES_128_GCM_SHA256", "-tls1_3"]), None);
    forebay.stop();
}

#[test]
fn sslscan_finds_nothing_below_a_modern_profile() {
    let forebay = site();
    let Some(program) = installed("sslscan") else { return };
    let target = format!("127.0.0.1:{}", forebay.address.port());
    let output = Command::new(program)
        .args(["--no-colour", "--sni-name=localhost", &target])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let tells = |line: &str| said.lines().any(|told| told.split_whitespace().eq(line.split(' ')));
    for (protocol, state) in [
        ("SSLv2", "disabled"),
        ("SSLv3", "disabled"),
        ("TLSv1.0", "disabled"),
        ("TLSv1.1", "disabled"),
        ("TLSv1.2", "enabled"),
        ("TLSv1.3", "enabled"),
    ] {
        assert!(tells(&format!("{protocol} {state}")), "{protocol}: {said}");
    }
    let ciphers: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("Preferred") || line.starts_with("Accepted"))
        .collect();
    assert!(ciphers.len() >= 6, "{said}");
    for cipher in ciphers {
        let is_modern = cipher.contains("TLSv1.3") && cipher.contains("TLS_")
            || cipher.contains("TLSv1.2")
                && cipher.contains(" ECDHE-")
                && (cipher.contains("-GCM-") || cipher.contains("-CHACHA20-POLY1305"));
        assert!(is_modern, "{cipher}");
    }
    for weak in ["Compression enabled", "vulnerable to heartbleed"] {
        let found = said.lines().any(|line| line.contains(weak) && !line.contains("not "));
        assert!(!found, "{weak}: {said}");
    }
    forebay.stop();
}

#[test]
fn a_site_with_stricter_tls_is_not_reached_by_a_handshake_for_another_site() {
    let Some(curl) = installed("curl") else { return };
    let folder = Folder::new();
    let authority = Authority::new("of the test");
    let identity = authority.issue(&["a.example", "b.example"]);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    let site = |host: &str, more: &str| {
        format!(
            "[[site]]\nhosts = \"{host}\"\nlisten = \"https://127.0.0.1:PORT\"\n\
             tls = {{ certificate = \"cert.pem\", key = \"key.pem\"{more} }}\n\
             [[site.route]]\nrespond = \"{host}\"\n"
        )
    };
    let port = forebay_testkit::port::free_port().to_string();
    let both = site("a.example", "") + &site("b.example", ", min_version = \"1.3\"");
    let forebay = serve(folder, &both.replace("PORT", &port));
    for (name, version, status) in
        [("a.example", "1.2", "421"), ("b.example", "1.3", "200"), ("b.example", "1.2", "000")]
    {
        let output = Command::new(&curl)
            .args([
                "-sk",
                "--http1.1",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-H",
                "Host: b.example",
            ])
            .args(["--tls-max", version, "--resolve", &format!("{name}:{port}:127.0.0.1")])
            .arg(format!("https://{name}:{port}/"))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), status, "{name} {version}");
    }
    forebay.stop();
}
