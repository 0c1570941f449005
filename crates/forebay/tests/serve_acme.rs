//! ACME certificates from the real Pebble: they are issued, stored, renewed, and replaced without a
//! lost connection.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{Redis, built_from_go, installed};
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::stream::TestStream;
use forebay_testkit::tls::{Authority, Identity, connect};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use support::{Forebay, serve};

const NAME: &str = "www.forebay.test";
const DAY: u64 = 24 * 3600;

/// A Pebble that finds every name on this machine, with the ports that it connects to.
struct Pebble {
    // Before the folder: fields are dropped in order.
    pebble: Option<Process>,
    _dns: Process,
    program: PathBuf,
    folder: Folder,
    directory: String,
    management: SocketAddr,
    authority: Authority,
    http: u16,
    https: u16,
    resolver: u16,
    /// The port that adds records to the DNS.
    control: u16,
}

impl Pebble {
    /// Starts Pebble. Returns `None` if it is not installed.
    fn start() -> Option<Self> {
        Self::start_with(&serde_json::json!({ "externalAccountBindingRequired": false }))
    }

    /// Starts Pebble with additional settings.
    fn start_with(more: &serde_json::Value) -> Option<Self> {
        let program = installed("pebble")?;
        // Part of the same package.
        let dns = program.with_file_name("pebble-challtestsrv");
        Some(Self::start_programs(program, (dns, "-dns01"), more))
    }

    /// Starts a newer Pebble, which has profiles, renewal information and addresses.
    fn start_new() -> Option<Self> {
        let program = built_from_go("new-pebble")?;
        let dns = built_from_go("new-pebble-challtestsrv")?;
        let profiles = serde_json::json!({ "profiles": {
            "classic": { "description": "90 days", "validityPeriod": 90 * DAY },
            "shortlived": { "description": "six days", "validityPeriod": 6 * DAY },
        }});
        Some(Self::start_programs(program, (dns, "-dnsserver"), &profiles))
    }

    fn start_programs(
        program: PathBuf,
        (dns, dns_flag): (PathBuf, &str),
        more: &serde_json::Value,
    ) -> Self {
        let folder = Folder::new();
        let authority = Authority::new("of Pebble's own server");
        let Identity { certificate, key } = authority.issue(&["127.0.0.1"]);
        let certificate = folder.write("pebble.pem", certificate);
        let key = folder.write("pebble-key.pem", key);
        folder.write("pebble-ca.pem", &authority.pem);
        let ports: Vec<u16> = (0..6).map(|_| free_port()).collect();
        let [acme, management, http, https, resolver, control] = ports[..] else { unreachable!() };
        let mut configuration = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{acme}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": certificate,
            "privateKey": key,
            "httpPort": http,
            "tlsPort": https,
            "ocspResponderURL": "",
        }});
        for (key, value) in more.as_object().unwrap() {
            configuration["pebble"][key] = value.clone();
        }
        let file = folder.write("pebble.json", configuration.to_string());
        let mut command = Command::new(dns);
        command.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]);
        command.args(["-http01", "", "-https01", "", "-tlsalpn01", ""]);
        command.args([dns_flag, &format!("127.0.0.1:{resolver}")]);
        command.args(["-management", &format!("127.0.0.1:{control}")]);
        let mut dns = Process::start(command);
        let loopback = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        dns.wait_until_listening(loopback(resolver));
        let mut pebble = run(&program, &file, resolver);
        pebble.wait_until_listening(loopback(acme));
        pebble.wait_until_listening(loopback(management));
        Self {
            pebble: Some(pebble),
            _dns: dns,
            program,
            folder,
            directory: format!("https://127.0.0.1:{acme}/dir"),
            management: loopback(management),
            authority,
            http,
            https,
            resolver,
            control,
        }
    }

    /// Ends Pebble, and starts a new one without any state.
    fn start_anew(&mut self) {
        drop(self.pebble.take());
        let mut pebble = run(&self.program, &self.folder.path().join("pebble.json"), self.resolver);
        pebble.wait_until_listening(self.management);
        self.pebble = Some(pebble);
    }

    /// Returns a configuration that gets its certificate from this Pebble.
    fn site(&self, more: &str) -> String {
        let Self { directory, http, https, folder, .. } = self;
        let folder = folder.path().display();
        format!(
            "[[site]]\nhosts = \"{NAME}\"\nlisten = [\"https://127.0.0.1:{https}\", \"127.0.0.1:{http}\"]\n\
             redirect_to_https = true\n\
             [site.tls]\nacme = {{ email = \"admin@forebay.test\", directory = \"{directory}\", \
             ca = \"{folder}/pebble-ca.pem\", state = \"{folder}/state\"{more} }}\n\
             [[site.route]]\nrespond = \"hello\"\n"
        )
    }

    /// Returns a client that trusts the certificates of this Pebble.
    fn client(&self) -> Arc<ClientConfig> {
        let mut client = connect(self.management, "127.0.0.1", self.authority.client()).unwrap();
        let root = client.get("/roots/0").body;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&root).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    fn https(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.https).into()
    }
}

fn run(program: &Path, file: &Path, resolver: u16) -> Process {
    let mut command = Command::new(program);
    command.arg("-config").arg(file).args(["-strict", "-dnsserver"]);
    command.arg(format!("127.0.0.1:{resolver}"));
    command.env("PEBBLE_VA_NOSLEEP", "1");
    Process::start(command)
}

/// Connects as soon as a certificate exists.
fn connect_when_issued(pebble: &Pebble, config: &Arc<ClientConfig>, forebay: &Forebay) -> Client {
    let begun = Instant::now();
    loop {
        match connect(pebble.https(), NAME, config.clone()) {
            Ok(client) => return client,
            Err(error) if begun.elapsed() > DEADLINE => {
                panic!("{error}: {}", forebay.process.output())
            }
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
}

fn certificate(client: &mut Client) -> CertificateDer<'static> {
    let TestStream::Tls(stream) = client.stream() else { unreachable!() };
    stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
}

fn hello(client: &mut Client) {
    client.send(format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n"));
    let reply = client.reply();
    assert_eq!((reply.status, &reply.body[..]), (200, &b"hello"[..]));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_certificate_is_issued_by_either_challenge_kept_and_shown_again() {
    let Some(pebble) = Pebble::start() else { return };
    let config = pebble.client();
    for challenge in ["http-01", "tls-alpn-01"] {
        let state = pebble.folder.path().join("state");
        let _ = fs::remove_dir_all(&state);
        let site = pebble.site(&format!(", challenge = \"{challenge}\""));
        let mut forebay = serve(Folder::new(), &site);
        let mut client = connect_when_issued(&pebble, &config, &forebay);
        hello(&mut client);
        let issued = certificate(&mut client);
        // The server uses the certificate before it writes and logs it.
        forebay.process.wait_for_output("a certificate was issued");
        forebay.stop();
        let authority = fs::read_dir(&state).unwrap().next().unwrap().unwrap().path();
        for file in [format!("{NAME}.pem"), "account.json".to_owned()] {
            assert_eq!(mode(&authority.join(file)), 0o600);
        }
        assert_eq!(mode(&state), 0o700);
        // The stored certificate is used from the first handshake on.
        let forebay = serve(Folder::new(), &site);
        let mut client = connect(pebble.https(), NAME, config.clone()).unwrap();
        assert_eq!(certificate(&mut client), issued);
        assert!(!forebay.process.output().contains("ACME"), "{}", forebay.process.output());
        forebay.stop();
    }
}

#[test]
fn a_certificate_is_renewed_before_its_end_and_connections_stay() {
    let Some(pebble) = Pebble::start() else { return };
    // Two thirds of the old certificate's lifetime are over, and it is valid.
    let old = Authority::new("that issued the first");
    let Identity { certificate: chain, key } = old.issue_until(&[NAME], 2036);
    let authority = pebble.directory.trim_start_matches("https://").replace([':', '/'], "_");
    pebble.folder.write(&format!("state/{authority}/{NAME}.pem"), format!("{key}\n{chain}"));
    let forebay = serve(Folder::new(), &pebble.site(""));
    let first = connect(pebble.https(), NAME, old.client());
    let config = pebble.client();
    let mut renewed = connect_when_issued(&pebble, &config, &forebay);
    hello(&mut renewed);
    // The handshake was faster than the renewal, unless the machine is very slow.
    if let Ok(mut first) = first {
        hello(&mut first);
    }
    assert!(connect(pebble.https(), NAME, old.client()).is_err(), "the first is shown no more");
    forebay.stop();
}

/// Adds an admin listener to a configuration, and returns its address.
fn with_admin(site: &str) -> (SocketAddr, String) {
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    (admin, format!("[server]\nadmin = \"{admin}\"\n{site}"))
}

/// Returns the value of a metric of the first certificate.
fn certificate_metric(admin: SocketAddr, name: &str) -> Option<u64> {
    let metrics = Client::connect(admin).get("/metrics").text().to_owned();
    let start = format!("forebay_certificate_{name}{{");
    let line = metrics.lines().find(|line| line.starts_with(&start))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn status(admin: SocketAddr) -> serde_json::Value {
    serde_json::from_str(Client::connect(admin).get("/status").text()).unwrap()
}

#[test]
fn a_profile_of_six_days_is_ordered_and_its_renewal_planned() {
    let Some(pebble) = Pebble::start_new() else { return };
    let (admin, site) = with_admin(&pebble.site(", profile = \"shortlived\""));
    let forebay = serve(Folder::new(), &site);
    hello(&mut connect_when_issued(&pebble, &pebble.client(), &forebay));
    let metric = |name: &str| certificate_metric(admin, name).unwrap_or_default();
    let (start, end) = (metric("start_timestamp_seconds"), metric("expiry_timestamp_seconds"));
    assert!((6 * DAY - 1..=6 * DAY).contains(&(end - start)), "{start} {end}");
    let is_planned = || {
        let due = metric("renewal_timestamp_seconds");
        (start + 3 * DAY..end).contains(&due)
    };
    assert!(eventually(is_planned), "{}", forebay.process.output());
    assert_eq!(certificate_metric(admin, "failed_orders"), Some(0));
    forebay.stop();
}

#[test]
fn a_profile_that_the_authority_lacks_is_reported_with_those_that_it_has() {
    let Some(pebble) = Pebble::start_new() else { return };
    let (admin, site) = with_admin(&pebble.site(", profile = \"weekly\""));
    let forebay = serve(Folder::new(), &site);
    assert!(eventually(|| certificate_metric(admin, "failed_orders") == Some(1)));
    let row = status(admin)["certificates"][0].clone();
    let error = row["renewal"]["error"].as_str().unwrap();
    let expected = "has no profile weekly: set `profile` to one of its own (classic, shortlived)";
    assert!(error.ends_with(expected), "{error}");
    assert_eq!(row["expires"], serde_json::Value::Null);
    forebay.stop();
}

#[test]
fn the_authority_moves_the_renewal_and_learns_what_is_replaced() {
    let Some(pebble) = Pebble::start_new() else { return };
    let (admin, site) = with_admin(&pebble.site(", profile = \"classic\""));
    let mut forebay = serve(Folder::new(), &site);
    let config = pebble.client();
    let issued = certificate(&mut connect_when_issued(&pebble, &config, &forebay));
    forebay.process.wait_for_output("a certificate was issued");
    forebay.stop();
    let authority = fs::read_dir(pebble.folder.path().join("state")).unwrap().next().unwrap();
    let file = fs::read_to_string(authority.unwrap().path().join(format!("{NAME}.pem"))).unwrap();
    let chain = &file[file.find("-----BEGIN CERTIFICATE-----").unwrap()..];
    let say = |answer: &str| {
        let body = serde_json::json!({ "Certificate": chain, "ARIResponse": answer }).to_string();
        let mut client =
            connect(pebble.management, "127.0.0.1", pebble.authority.client()).unwrap();
        client.send(format!(
            "POST /set-renewal-info/ HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
    };
    let due = || certificate_metric(admin, "renewal_timestamp_seconds").unwrap_or_default();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    // What is not a window changes nothing.
    say("{\"suggestedWindow\":{\"start\":\"tomorrow\"}}");
    let mut forebay = serve(Folder::new(), &site);
    forebay.process.wait_for_output("the authority does not say when to renew");
    assert!((now + 59 * DAY..now + 64 * DAY).contains(&due()), "{}", due());
    forebay.stop();
    // A window in 2035 would be too late.
    say(
        "{\"suggestedWindow\":{\"start\":\"2135-01-01T00:00:00Z\",\"end\":\"2135-01-02T00:00:00Z\"}}",
    );
    let forebay = serve(Folder::new(), &site);
    let eighth = 90 * DAY / 8;
    let latest = now + 90 * DAY - eighth;
    assert!(eventually(|| (latest - 3600..latest + 3600).contains(&due())), "{}", due());
    forebay.stop();
    // A window in the past: now.
    say(
        "{\"suggestedWindow\":{\"start\":\"2026-01-01T00:00:00Z\",\"end\":\"2026-01-02T00:00:00Z\"}}",
    );
    let mut forebay = serve(Folder::new(), &site);
    forebay.process.wait_for_output("the authority wants a renewal now");
    forebay.process.wait_for_output("a certificate was issued");
    let renewed = certificate(&mut connect(pebble.https(), NAME, config).unwrap());
    assert_ne!(renewed, issued);
    let log = pebble.pebble.as_ref().unwrap().output();
    assert_eq!(log.matches("has been marked as replaced").count(), 1, "{log}");
    forebay.stop();
}

#[test]
fn an_address_gets_a_certificate_and_clients_without_a_name_see_it() {
    let Some(pebble) = Pebble::start_new() else { return };
    let config = pebble.client();
    let other = Authority::new("of the first site");
    let Identity { certificate: chain, key } = other.issue(&["first.test"]);
    let (chain, key) = (pebble.folder.write("a.pem", chain), pebble.folder.write("a.key", key));
    for challenge in ["http-01", "tls-alpn-01"] {
        let _ = fs::remove_dir_all(pebble.folder.path().join("state"));
        let site = pebble.site(&format!(", challenge = \"{challenge}\", profile = \"shortlived\""));
        let site = site.replace(NAME, "127.0.0.1");
        let first = format!(
            "[[site]]\nhosts = \"first.test\"\nlisten = \"https://127.0.0.1:{}\"\n\
             tls = {{ certificate = \"{}\", key = \"{}\" }}\n[[site.route]]\nrespond = \"first\"\n",
            pebble.https,
            chain.display(),
            key.display()
        );
        let configuration = format!("{first}{site}");
        let mut forebay = serve(Folder::new(), &configuration);
        forebay.process.wait_for_output("a certificate was issued");
        let mut client = connect(pebble.https(), "127.0.0.1", config.clone()).unwrap();
        client.send("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        assert_eq!(client.reply().text(), "hello");
        assert!(connect(pebble.https(), "first.test", other.client()).is_ok());
        forebay.stop();
        // The saved certificate is found and used at once.
        let forebay = serve(Folder::new(), &configuration);
        assert!(connect(pebble.https(), "127.0.0.1", config.clone()).is_ok());
        forebay.stop();
    }
}

#[test]
fn an_authority_that_has_forgotten_the_account_is_given_another() {
    let Some(mut pebble) = Pebble::start() else { return };
    let mut forebay = serve(Folder::new(), &pebble.site(""));
    connect_when_issued(&pebble, &pebble.client(), &forebay);
    forebay.process.wait_for_output("a certificate was issued");
    forebay.stop();
    pebble.start_anew();
    let state = pebble.folder.path().join("state");
    let authority = fs::read_dir(&state).unwrap().next().unwrap().unwrap().path();
    let account = fs::read(authority.join("account.json")).unwrap();
    fs::remove_file(authority.join(format!("{NAME}.pem"))).unwrap();
    let forebay = serve(Folder::new(), &pebble.site(""));
    connect_when_issued(&pebble, &pebble.client(), &forebay);
    assert_ne!(fs::read(authority.join("account.json")).unwrap(), account);
    forebay.stop();
}

#[test]
fn sites_of_the_same_names_share_one_certificate() {
    let Some(pebble) = Pebble::start() else { return };
    let site = pebble.site("");
    let other = free_port();
    let (https, http) =
        (format!("127.0.0.1:{}", pebble.https), format!("\"127.0.0.1:{}\"", pebble.http));
    let second =
        site.replace(&https, &format!("127.0.0.1:{other}")).replace(&format!(", {http}"), "");
    let second = second.replace("redirect_to_https = true\n", "");
    let mut forebay = serve(Folder::new(), &format!("{site}{second}"));
    let config = pebble.client();
    let mut first = connect_when_issued(&pebble, &config, &forebay);
    let second = SocketAddr::from((Ipv4Addr::LOCALHOST, other));
    let mut second = connect(second, NAME, config).unwrap();
    assert_eq!(certificate(&mut first), certificate(&mut second));
    forebay.process.wait_for_output("a certificate was issued");
    assert_eq!(forebay.process.output().matches("a certificate was issued").count(), 1);
    forebay.stop();
}

#[test]
fn one_machine_orders_and_all_answer_and_serve() {
    let (Some(pebble), Some(mut redis)) = (Pebble::start(), Redis::start(None)) else { return };
    let lock = format!(
        "forebay:lock:acme/{}",
        pebble.directory.trim_start_matches("https://").replace([':', '/'], "_")
    );
    let config = pebble.client();
    let own = |listen: u16, challenge: &str, state: &str| {
        let site = pebble.site(&format!(", challenge = \"{challenge}\""));
        let listens = format!("listen = [\"https://127.0.0.1:{listen}\"]");
        let start = site.find("listen = ").unwrap();
        let end = start + site[start..].find('\n').unwrap();
        let site = site.replacen(&site[start..end], &listens, 1);
        site.replace("redirect_to_https = true\n", "").replace("/state\"", &format!("/{state}\""))
    };
    for (database, challenge) in ["http-01", "tls-alpn-01"].into_iter().enumerate() {
        let store = format!(
            "[server]\nstore = \"{}\"\nstore_key = \"{}\"\n",
            redis.url(database as u32),
            "0123456789abcdef".repeat(2)
        );
        let state = format!("state-{challenge}");
        // The authority asks this machine, which has another site and orders nothing there.
        let dead = format!("https://127.0.0.1:{}/dir", free_port());
        let asked = pebble.site("").replace(NAME, "other.test").replace(&pebble.directory, &dead);
        let asked = serve(Folder::new(), &format!("{store}{asked}"));
        // A machine has died while it had the lock.
        redis.send(&[
            &[b"SELECT", database.to_string().as_bytes()],
            &[b"SET", lock.as_bytes(), b"dead", b"PX", b"700"],
        ]);
        let port = free_port();
        let site = own(port, challenge, &state);
        let mut orders = serve(Folder::new(), &format!("{store}{site}"));
        orders.process.wait_for_output("a certificate was issued");
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let connect_at = |port, forebay: &Forebay| {
            let mut found = None;
            let shown = eventually(|| {
                found = connect(at(port), NAME, config.clone()).ok();
                found.is_some()
            });
            assert!(shown, "{}", forebay.process.output());
            found.unwrap()
        };
        let mut client = connect_at(port, &orders);
        hello(&mut client);
        let issued = certificate(&mut client);
        // A third machine orders nothing.
        let third = free_port();
        let site = own(third, challenge, &format!("{state}-3"));
        let mut late = serve(Folder::new(), &format!("{store}{site}"));
        assert_eq!(certificate(&mut connect_at(third, &late)), issued);
        late.process.wait_for_output("uses the certificate in the store");
        assert!(!late.process.output().contains("was issued"), "{}", late.process.output());
        late.stop();
        if database == 1 {
            // The machine has a copy, so it starts without the store.
            redis.kill();
            let late = serve(Folder::new(), &format!("{store}{site}"));
            let mut client = connect(at(third), NAME, config.clone()).unwrap();
            assert_eq!(certificate(&mut client), issued);
            late.stop();
        }
        orders.stop();
        asked.stop();
    }
}

#[test]
fn an_authority_that_cannot_be_reached_is_logged_with_what_to_do() {
    let Some(pebble) = Pebble::start() else { return };
    let mut site = pebble.site("");
    let dead = format!("https://127.0.0.1:{}/dir", free_port());
    site = site.replace(&pebble.directory, &dead);
    let mut forebay = serve(Folder::new(), &site);
    forebay.process.wait_for_output("next attempt in");
    let output = forebay.process.output();
    assert!(output.contains(&dead) && output.contains(NAME), "{output}");
    assert!(connect(pebble.https(), NAME, pebble.client()).is_err(), "there is nothing to show");
    let mut plain = Client::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, pebble.http)));
    assert_eq!(plain.get("/.well-known/acme-challenge/x").status, 308, "all else is served");
    forebay.stop();
}

/// Writes a program for `dns_hook` that adds records to Pebble's DNS server, and a log of its calls.
fn dns_hook(pebble: &Pebble) -> String {
    let hook = pebble.folder.script(
        "hook",
        format!(
            "#!/bin/sh\necho \"$*\" >> {}/calls\n\
             case $2 in present) path=set-txt;; *) path=clear-txt;; esac\n\
             curl -sf -d \"{{\\\"host\\\": \\\"$3\\\", \\\"value\\\": \\\"$4\\\"}}\" http://127.0.0.1:{}/$path\n",
            pebble.folder.path().display(),
            pebble.control
        ),
    );
    format!("dns_hook = [\"{}\", \"zone\"]", hook.display())
}

#[test]
fn a_wildcard_certificate_is_issued_by_a_program_that_creates_dns_records() {
    let Some(pebble) = Pebble::start() else { return };
    let keys = format!(", challenge = \"dns-01\", dns_wait = \"0s\", {}", dns_hook(&pebble));
    let hosts = "hosts = [\"*.forebay.test\", \"forebay.test\"]";
    let site = pebble.site(&keys).replace(&format!("hosts = \"{NAME}\""), hosts);
    let mut forebay = serve(Folder::new(), &site);
    let config = pebble.client();
    hello(&mut connect_when_issued(&pebble, &config, &forebay));
    for name in ["forebay.test", "x.forebay.test"] {
        assert!(connect(pebble.https(), name, config.clone()).is_ok(), "{name}");
    }
    forebay.process.wait_for_output("a certificate was issued");
    let calls = fs::read_to_string(pebble.folder.path().join("calls")).unwrap();
    let actions: Vec<_> =
        calls.lines().map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" ")).collect();
    let (present, cleanup) = ("zone present", "zone cleanup");
    let record = "_acme-challenge.forebay.test.";
    assert_eq!(actions, [present, present, cleanup, cleanup].map(|a| format!("{a} {record}")));
    forebay.stop();
    // The saved certificate is served at once.
    let forebay = serve(Folder::new(), &site);
    assert!(connect(pebble.https(), NAME, config).is_ok());
    forebay.stop();
}

#[test]
fn records_are_removed_if_the_server_stops_during_the_order() {
    let Some(pebble) = Pebble::start() else { return };
    let keys = format!(", challenge = \"dns-01\", dns_wait = \"60s\", {}", dns_hook(&pebble));
    let forebay = serve(Folder::new(), &pebble.site(&keys));
    let calls = pebble.folder.path().join("calls");
    let actions = || {
        let calls = fs::read_to_string(&calls).unwrap_or_default();
        (calls.matches(" present ").count(), calls.matches(" cleanup ").count())
    };
    assert!(eventually(|| actions() == (1, 0)), "{}", forebay.process.output());
    forebay.stop();
    assert_eq!(actions(), (1, 1));
}

#[test]
fn a_dns_hook_that_fails_is_logged_with_its_last_line() {
    let Some(pebble) = Pebble::start() else { return };
    let hook =
        pebble.folder.script("hook", "#!/bin/sh\necho 'the token has expired' >&2; exit 7\n");
    let keys = format!(", challenge = \"dns-01\", dns_hook = \"{}\"", hook.display());
    let mut forebay = serve(Folder::new(), &pebble.site(&keys));
    forebay.process.wait_for_output("next attempt in");
    let output = forebay.process.output();
    assert!(output.contains("exit status: 7: the token has expired"), "{output}");
    assert!(output.contains("a DNS record stays"), "{output}");
    forebay.stop();
}

#[test]
fn an_authority_with_customers_is_given_the_external_account() {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let more = serde_json::json!({
        "externalAccountBindingRequired": true,
        "externalAccountMACKeys": { "kid-1": key },
    });
    let Some(pebble) = Pebble::start_with(&more) else { return };
    let account =
        |key: &str| format!(", external_account = {{ key_id = \"kid-1\", mac_key = \"{key}\" }}");
    let mut forebay = serve(Folder::new(), &pebble.site(&account(key)));
    hello(&mut connect_when_issued(&pebble, &pebble.client(), &forebay));
    forebay.process.wait_for_output("a certificate was issued");
    assert!(!forebay.process.output().contains(key));
    forebay.stop();
    fs::remove_dir_all(pebble.folder.path().join("state")).unwrap();
    let mut forebay = serve(Folder::new(), &pebble.site(&account(&key.replace('z', "y"))));
    forebay.process.wait_for_output("next attempt in");
    forebay.stop();
}

/// An application that permits names with `good` in them. It redirects for `moved`, and is silent for
/// `silent`.
struct Asked {
    address: SocketAddr,
    targets: Arc<Mutex<Vec<String>>>,
}

impl Asked {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, targets) = (listener.local_addr().unwrap(), Arc::default());
        let all: Arc<Mutex<Vec<String>>> = Arc::clone(&targets);
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let all = all.clone();
                std::thread::spawn(move || Self::answer(stream.unwrap(), &all));
            }
        });
        Self { address, targets }
    }

    fn answer(mut stream: TcpStream, all: &Mutex<Vec<String>>) {
        let mut head = String::new();
        let mut reader = BufReader::new(&stream);
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0)
        {
        }
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let reply = match &target {
            silent if silent.contains("silent") => return std::thread::sleep(2 * DEADLINE),
            good if good.contains("good") => "HTTP/1.1 200 OK\r\n\r\n",
            moved if moved.contains("moved") => {
                "HTTP/1.1 302 Found\r\nLocation: /?domain=good\r\n\r\n"
            }
            _ => "HTTP/1.1 404 Not Found\r\n\r\n",
        };
        all.lock().unwrap().push(target);
        let _ = stream.write_all(reply.as_bytes());
    }

    /// Returns the number of questions about a name.
    fn count(&self, name: &str) -> usize {
        let end = format!("domain={name}");
        self.targets.lock().unwrap().iter().filter(|target| target.ends_with(&end)).count()
    }

    /// Returns a site for all names of forebay.test, and one for other.test with a certificate of its own.
    fn sites(&self, pebble: &Pebble, more: &str) -> String {
        let keys =
            format!(", on_demand = {{ ask = \"http://{}/may-have?token=x\"{more} }}", self.address);
        let site = pebble.site(&keys);
        let site = site
            .replace(&format!("hosts = \"{NAME}\""), "hosts = \"*.forebay.test\"\nhttp3 = true");
        let authority = Authority::new("of the other site");
        let Identity { certificate, key } = authority.issue(&["other.test"]);
        let certificate = pebble.folder.write("other.pem", certificate);
        let key = pebble.folder.write("other-key.pem", key);
        format!(
            "{site}[[site]]\nhosts = \"other.test\"\nlisten = \"https://127.0.0.1:{}\"\n\
             tls = {{ certificate = {certificate:?}, key = {key:?} }}\n\
             [[site.route]]\nrespond = \"secret\"\n",
            pebble.https
        )
    }
}

/// Returns the alert that ends a handshake for `name`.
fn alert(pebble: &Pebble, name: &str, config: &Arc<ClientConfig>) -> String {
    match connect(pebble.https(), name, config.clone()) {
        Ok(_) => panic!("{name} has a certificate"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_certificate_on_demand_is_issued_when_the_application_permits_the_name() {
    let Some(pebble) = Pebble::start() else { return };
    let asked = Asked::start();
    let config = pebble.client();
    let forebay = serve(Folder::new(), &asked.sites(&pebble, ""));
    // Both handshakes wait for the same order.
    let names = ["good-1.forebay.test", "good-1.forebay.test", "good-2.forebay.test"];
    std::thread::scope(|scope| {
        for name in names {
            let (pebble, config) = (&pebble, config.clone());
            scope.spawn(move || {
                let mut client = connect(pebble.https(), name, config).unwrap();
                client.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n"));
                assert_eq!(client.reply().text(), "hello");
            });
        }
    });
    assert!(eventually(|| forebay.process.output().matches("was issued").count() == 2));
    assert_eq!(
        ["good-1", "good-2"].map(|name| asked.count(&format!("{name}.forebay.test"))),
        [1, 1]
    );
    let targets = asked.targets.lock().unwrap().clone();
    assert!(
        targets.iter().all(|target| target.starts_with("/may-have?token=x&domain=")),
        "{targets:?}"
    );

    for _ in 0..5 {
        for name in ["bad.forebay.test", "moved.forebay.test", "good.elsewhere.test"] {
            let alert = alert(&pebble, name, &config);
            assert!(alert.contains("UnrecognisedName"), "{name}: {alert}");
        }
    }
    let counts = ["bad.forebay.test", "moved.forebay.test", "good", "good.elsewhere.test"];
    assert_eq!(counts.map(|name| asked.count(name)), [1, 1, 0, 0], "refusals are remembered");
    // Forebay asks only about host names. TLS clients send no other names, or no name.
    let mut plain = config.as_ref().clone();
    plain.enable_sni = false;
    assert!(connect(pebble.https(), "good-1.forebay.test", plain).is_err());

    // The certificate opens no other site.
    let mut client = connect(pebble.https(), "good-1.forebay.test", config.clone()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n");
    assert_eq!(client.reply().status, 421);
    forebay.stop();

    // Saved certificates are shown without a question or an order.
    let before = asked.targets.lock().unwrap().len();
    let forebay = serve(Folder::new(), &asked.sites(&pebble, ""));
    for name in ["good-1.forebay.test", "good-2.forebay.test"] {
        assert!(connect(pebble.https(), name, config.clone()).is_ok());
    }
    assert_eq!(asked.targets.lock().unwrap().len(), before);
    assert!(!forebay.process.output().contains("was issued"));
    forebay.stop();
}

#[test]
fn hosts_with_a_directory_get_certificates_on_demand() {
    let Some(pebble) = Pebble::start() else { return };
    let config = pebble.client();
    let folder = Folder::new();
    folder.write("srv/a.forebay.test/htdocs/index.html", "a");
    folder.write("srv/b.forebay.test/other/index.html", "b");
    let site = pebble.site(", on_demand = {}");
    let site = site.replace(&format!("hosts = \"{NAME}\""), "hosts_from = \"srv/*/htdocs\"");
    let site = site.replace("respond = \"hello\"", "files = \"srv/{host}/htdocs\"");
    let forebay = serve(folder, &site);
    let get = |name: &str| {
        let mut client = connect(pebble.https(), name, config.clone()).ok()?;
        client.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"));
        Some(client.reply().text().to_owned())
    };
    assert!(!forebay.process.output().contains("was issued"), "nobody has asked yet");
    assert_eq!(get("a.forebay.test").as_deref(), Some("a"), "{}", forebay.process.output());
    let long = format!("{}.forebay.test", "a".repeat(63));
    for name in ["b.forebay.test", "c.forebay.test", "www.a.forebay.test", "forebay.test", &long] {
        assert_eq!(get(name), None, "{name}");
    }
    // A site that appears may have one, too.
    forebay.folder.write("srv/b.forebay.test/htdocs/index.html", "new");
    assert!(eventually(|| get("b.forebay.test").as_deref() == Some("new")));
    assert_eq!(forebay.process.output().matches("was issued").count(), 2);
    forebay.stop();
}

#[test]
fn a_flood_of_names_costs_few_orders_and_other_clients_are_served() {
    let Some(pebble) = Pebble::start() else { return };
    let asked = Asked::start();
    let config = pebble.client();
    let more = ", rate = \"1/h\", burst = 2, concurrent = 1, certificates = 2, wait = \"60s\"";
    let forebay = serve(Folder::new(), &asked.sites(&pebble, more));
    let mut first = connect(pebble.https(), "good.forebay.test", config.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (pebble, config) = (&pebble, config.clone());
            scope.spawn(move || {
                for number in 0..25 {
                    let kind = if number % 5 == 0 { "good" } else { "bad" };
                    let name = format!("{kind}-{thread}-{number}.forebay.test");
                    let _ = connect(pebble.https(), &name, config.clone());
                }
            });
        }
        first.send("GET / HTTP/1.1\r\nHost: good.forebay.test\r\n\r\n");
        assert_eq!(first.reply().text(), "hello");
    });
    assert!(eventually(|| forebay.process.output().matches("was issued").count() == 3));
    // Memory has two certificates, and the directory has the first one.
    assert!(connect(pebble.https(), "good.forebay.test", config.clone()).is_ok());
    assert_eq!(asked.count("good.forebay.test"), 1);
    let output = forebay.process.output();
    assert!(output.contains("no certificate on demand: "), "{output}");
    assert!(output.lines().filter(|line| line.contains("on demand")).count() < 20, "{output}");
    forebay.stop();
}

#[test]
fn machines_share_certificates_on_demand() {
    let (Some(pebble), Some(redis)) = (Pebble::start(), Redis::start(None)) else { return };
    let asked = Asked::start();
    let config = pebble.client();
    let store = format!(
        "[server]\nstore = \"{}\"\nstore_key = \"{}\"\n",
        redis.url(0),
        "0123456789abcdef".repeat(2)
    );
    let first = format!("{store}{}", asked.sites(&pebble, ""));
    let own = |text: &str, listen: u16| {
        let text = text.replace(&format!(", \"127.0.0.1:{}\"", pebble.http), "");
        let text = text.replace("redirect_to_https = true\n", "").replace("/state\"", "/state-2\"");
        text.replace(&format!("127.0.0.1:{}\"", pebble.https), &format!("127.0.0.1:{listen}\""))
    };
    let port = free_port();
    let first = serve(Folder::new(), &first);
    let second = serve(Folder::new(), &own(&format!("{store}{}", asked.sites(&pebble, "")), port));
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // The authority asks the first machine, and the second one orders.
    let name = "good.forebay.test";
    let issued = certificate(&mut connect(at, name, config.clone()).unwrap());
    let mut client = connect(pebble.https(), name, config).unwrap();
    assert_eq!(certificate(&mut client), issued);
    assert_eq!(asked.count(name), 2, "each machine asks");
    assert!(!first.process.output().contains("was issued"), "{}", first.process.output());
    let says = || first.process.output().contains("uses the certificate in the store");
    assert!(eventually(says), "{}", first.process.output());
    first.stop();
    second.stop();
}

#[test]
fn an_application_without_an_answer_costs_a_handshake_and_not_the_server() {
    let Some(pebble) = Pebble::start() else { return };
    let asked = Asked::start();
    let config = pebble.client();
    let forebay = serve(Folder::new(), &asked.sites(&pebble, ", wait = \"500ms\""));
    let alert = alert(&pebble, "silent.forebay.test", &config);
    assert!(alert.contains("InternalError"), "{alert}");
    forebay.stop();
}

#[test]
fn http3_shows_certificates_that_were_obtained_on_demand() {
    let Some(pebble) = Pebble::start() else { return };
    let asked = Asked::start();
    let config = pebble.client();
    let forebay = serve(Folder::new(), &asked.sites(&pebble, ""));
    let mut crypto = config.as_ref().clone();
    crypto.alpn_protocols = vec![b"h3".to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(crypto).unwrap();
    let client = quinn::ClientConfig::new(Arc::new(crypto));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let connect = async |name: &str| {
            endpoint.connect_with(client.clone(), pebble.https(), name).unwrap().await
        };
        // The handshake waits for the order.
        for _ in 0..2 {
            let connected = connect("good.forebay.test").await;
            assert!(connected.is_ok(), "{connected:?} {}", forebay.process.output());
        }
        let mut flood = tokio::task::JoinSet::new();
        for number in 0..100 {
            let name = format!("bad-{number}.forebay.test");
            let connecting = endpoint.connect_with(client.clone(), pebble.https(), &name).unwrap();
            flood.spawn(async move { connecting.await.is_err() });
        }
        assert!(flood.join_all().await.into_iter().all(|is_refused| is_refused));
        assert!(connect("good-2.forebay.test").await.is_ok());
    });
    assert_eq!(asked.count("good.forebay.test"), 1);
    forebay.stop();
}
