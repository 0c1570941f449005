//! Resolves `[site.tls]` and the TLS settings for backends. Checks that no socket is used both with
//! and without TLS.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use super::value::{host_and_port, no_control, required, text, time, time_above_zero, within};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At};
use crate::key::paths::{file, path};
use crate::key::{no_effect, not_empty};
use crate::plan::{
    Acme, AcmeChallenge, AskUrl, BackendTls, CertificateSource, Cipher, ClientAuth, Curve,
    ExternalAccount, HostPattern, Listen, OnDemand, Rate, Secret, Tls,
};
use crate::preset::other_name;

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The URL that `directory = "staging"` stands for.
const STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// The default directory for ACME accounts, certificates and keys.
const STATE: &str = "/var/lib/forebay/acme";

/// Returns the TLS settings of a site. Returns `None` if none of its listeners uses TLS.
pub(super) fn tls(
    context: &Context<'_>,
    site: &At<file::Site>,
    (listen, hosts): (&[Listen], &[HostPattern]),
) -> Resolution<Option<Tls>> {
    let is_https = listen.iter().any(Listen::is_https);
    let Some(typed) = &site.tls else {
        if !is_https {
            return Ok(None);
        }
        let span = site.listen.as_ref().map_or(&site.span, |at| &at.span);
        return Err(Problem::new(span, "this site listens on https:// and has no certificate")
            .help(
                "give it one: [site.tls] with certificate = \"cert.pem\" and key = \"key.pem\"",
            ));
    };
    if !is_https && context.is_default(&typed.span) {
        return Ok(None);
    }
    if !is_https {
        let help = "listen with TLS: listen = \"https://0.0.0.0:443\"";
        return Err(no_effect(&typed.span, "tls", "without an https:// listener", help));
    }
    Ok(Some(Tls {
        source: match &typed.acme {
            Some(table) => {
                let mut acme = acme(context, typed, table, hosts)?;
                if site.www.is_some() {
                    acme.names = with_other_names(&acme.names);
                }
                match &table.on_demand {
                    Some(at) => {
                        CertificateSource::OnDemand(Box::new(on_demand(context, at, acme, hosts)?))
                    }
                    None => CertificateSource::Acme(acme),
                }
            }
            None => files(context, typed)?,
        },
        clients: clients(context, typed, listen)?,
        ocsp_staple: typed.ocsp_staple.as_ref().map(|at| file(context.sources, at)).transpose()?,
        is_13_only: typed.min_version.as_ref().is_some_and(|at| at.value == file::TlsVersion::V13),
        ciphers: ciphers(typed, site.http3.as_ref().is_some_and(|at| at.value))?,
        curves: curves(typed)?,
    }))
}

/// Returns the TLS settings of a stream, whose clients name these hosts.
pub(super) fn stream_tls(
    context: &Context<'_>,
    typed: &At<file::Tls>,
    hosts: &[HostPattern],
) -> Resolution<Tls> {
    if let Some(at) = &typed.client_subject_field {
        let help = "leave it out: the servers of a stream get no request fields";
        return Err(no_effect(&at.span, "client_subject_field", "on a stream", help));
    }
    let on_demand = typed.acme.as_ref().and_then(|table| table.on_demand.as_ref());
    if let Some(at) = on_demand {
        let help = "name the hosts in `sni`, and leave it out";
        return Err(no_effect(&at.span, "on_demand", "on a stream", help));
    }
    let source = match &typed.acme {
        Some(table) if hosts.contains(&HostPattern::Any) => {
            let message = "ACME needs host names, and this stream has none";
            return Err(Problem::new(&table.span, message)
                .help("name all of them: sni = [\"db.example.org\", \"mail.example.org\"]"));
        }
        Some(table) => CertificateSource::Acme(acme(context, typed, table, hosts)?),
        None => files(context, typed)?,
    };
    Ok(Tls {
        source,
        clients: clients(context, typed, &[])?,
        ocsp_staple: typed.ocsp_staple.as_ref().map(|at| file(context.sources, at)).transpose()?,
        is_13_only: typed.min_version.as_ref().is_some_and(|at| at.value == file::TlsVersion::V13),
        ciphers: ciphers(typed, false)?,
        curves: curves(typed)?,
    })
}

/// Returns the cipher suites. It is an error if no permitted version of TLS has one of them. With
/// `http3`, it is also an error if TLS_AES_128_GCM_SHA256 is missing.
fn ciphers(typed: &file::Tls, has_http3: bool) -> Resolution<Vec<Cipher>> {
    let Some(at) = &typed.ciphers else { return Ok(Vec::new()) };
    let ciphers: Vec<_> = at.items().iter().map(|item| *item.value).collect();
    let is_13_only = typed.min_version.as_ref().is_some_and(|at| at.value == file::TlsVersion::V13);
    if !ciphers.iter().any(|cipher| cipher.is_13() || !is_13_only) {
        let message = if is_13_only {
            "TLS 1.3 has none of these cipher suites"
        } else {
            "this list is empty, so that no client can connect"
        };
        return Err(Problem::new(&at.span, message)
            .help("add \"TLS_AES_128_GCM_SHA256\", or leave the key out to allow all"));
    }
    if has_http3 && !ciphers.contains(&Cipher::Aes128GcmSha256) {
        return Err(Problem::new(&at.span, "HTTP/3 needs the cipher suite TLS_AES_128_GCM_SHA256")
            .help("add it, or leave out `http3` for this site"));
    }
    Ok(ciphers)
}

/// Checks `curves`, which must name at least one curve.
fn curves(typed: &file::Tls) -> Resolution<Vec<Curve>> {
    let Some(at) = &typed.curves else {
        return Ok(Curve::ALL.to_vec());
    };
    let items = at.items();
    not_empty(
        &items,
        &at.span,
        ", so that no client can connect",
        "add \"X25519\", or leave the key out to allow all",
    )?;
    Ok(items.iter().map(|item| *item.value).collect())
}

/// Returns the host names of a site, and the names that its key `www` redirects. Forebay adds a
/// second site that redirects these names. Both sites get the names in the same order, so that they
/// use the same certificate.
fn with_other_names(names: &[String]) -> Vec<String> {
    let mut all: Vec<_> = names
        .iter()
        .flat_map(|name| {
            // No name begins with "www." before an address.
            let other = name.parse::<IpAddr>().is_err().then(|| other_name(name));
            std::iter::once(name.clone()).chain(other)
        })
        .collect();
    all.sort_by_key(|name| (name.trim_start_matches("www.").to_owned(), name.len()));
    all.dedup();
    all
}

fn files(context: &Context<'_>, typed: &At<file::Tls>) -> Resolution<CertificateSource> {
    let needed = |key: &Option<At<String>>, name: &str, help: &str| match key {
        Some(typed) => file(context.sources, typed),
        None => Err(Problem::new(&typed.span, format!("`tls` has no `{name}`")).help(help)),
    };
    Ok(CertificateSource::Files {
        certificate: needed(
            &typed.certificate,
            "certificate",
            "give the file with the certificate and its intermediates: certificate = \
             \"cert.pem\", or have one issued: acme = {}",
        )?,
        key: needed(&typed.key, "key", "give the file with its private key: key = \"key.pem\"")?,
    })
}

/// Checks `[site.tls.acme]`, which excludes a certificate from files.
fn acme(
    context: &Context<'_>,
    tls: &file::Tls,
    typed: &At<file::Acme>,
    hosts: &[HostPattern],
) -> Resolution<Acme> {
    let files =
        [("certificate", &tls.certificate), ("key", &tls.key), ("ocsp_staple", &tls.ocsp_staple)];
    if let Some((key, at)) = files.iter().find_map(|(key, at)| Some((key, at.as_ref()?))) {
        let help = "leave it out, or leave out `acme`";
        return Err(no_effect(&at.span, key, "if `acme` obtains the certificate", help));
    }
    let names = if typed.on_demand.is_some() { Vec::new() } else { acme_names(typed, hosts)? };
    let directory = match &typed.directory {
        None => LETS_ENCRYPT.to_owned(),
        Some(at) if at.value == "staging" => STAGING.to_owned(),
        Some(at) if at.starts_with("https://") => at.value.clone(),
        Some(at) => {
            return Err(Problem::new(&at.span, "this is neither an https:// URL nor \"staging\"")
                .help(format!("as in directory = \"{LETS_ENCRYPT}\"")));
        }
    };
    let profile = match &typed.profile {
        Some(at) => Some(profile(at)?),
        // Let's Encrypt issues certificates for addresses with this profile only.
        None if names.iter().any(|name| name.parse::<IpAddr>().is_ok())
            && [LETS_ENCRYPT, STAGING].contains(&&*directory) =>
        {
            Some("shortlived".to_owned())
        }
        None => None,
    };
    if let Some(at) = typed.email.as_ref().filter(|at| !at.contains('@')) {
        return Err(Problem::new(&at.span, "this is not an e-mail address")
            .help("as in email = \"admin@example.org\""));
    }
    Ok(Acme {
        names,
        directory,
        profile,
        ca: typed.ca.as_ref().map(|at| file(context.sources, at)).transpose()?,
        email: typed.email.as_ref().map(|at| at.value.clone()),
        state: match &typed.state {
            Some(at) => path(context.sources, at)?,
            None => STATE.into(),
        },
        challenge: typed.challenge.as_ref().map(|at| at.value),
        dns_hook: dns_hook(context, typed)?,
        dns_wait: time(&typed.dns_wait, Duration::from_secs(10))?,
        external_account: typed.external_account.as_ref().map(external_account).transpose()?,
    })
}

fn profile(at: &At<String>) -> Resolution<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if at.is_empty() || at.len() > 64 || !at.bytes().all(is_plain) {
        return Err(Problem::new(&at.span, "this is not the name of a profile")
            .help("the authority lists its profiles, such as profile = \"shortlived\""));
    }
    Ok(at.value.clone())
}

/// Returns the names of the certificate. An address has no brackets there.
fn acme_names(typed: &At<file::Acme>, hosts: &[HostPattern]) -> Resolution<Vec<String>> {
    let has_dns = matches!(typed.challenge.as_ref().map(|at| at.value), Some(AcmeChallenge::Dns01));
    let name = |host: &HostPattern| {
        match host {
        HostPattern::Exact(name) => match address(name) {
            Some(address) if has_dns => Err(Problem::new(
                &typed.span,
                format!("no authority verifies the address {address} by dns-01"),
            )
            .help("use http-01 or tls-alpn-01, or give the address a site of its own")),
            Some(address) => Ok(address.to_string()),
            None => Ok(name.to_ascii_lowercase()),
        },
        HostPattern::Suffix(end) if has_dns => Ok(format!("*{}", end.to_ascii_lowercase())),
        HostPattern::Suffix(end) => Err(Problem::new(
            &typed.span,
            format!("ACME for *{end} needs the challenge dns-01"),
        )
        .help(
            "set challenge = \"dns-01\" and dns_hook = \"PROGRAM\", or set `on_demand`, or give the \
             certificate by `certificate` and `key`",
        )),
        HostPattern::Any => {
            Err(Problem::new(&typed.span, "ACME needs host names, and this site has none")
                .help(
                    "name all of them: hosts = [\"example.org\", \"www.example.org\"], or set \
                     `on_demand`",
                ))
        }
    }
    };
    hosts.iter().map(name).collect()
}

/// Returns the address that the host of a site is: `192.0.2.1` or `[2001:db8::1]`.
fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// Returns the program that creates DNS records, and its arguments.
fn dns_hook(context: &Context<'_>, typed: &At<file::Acme>) -> Resolution<Vec<String>> {
    let challenge = typed.challenge.as_ref();
    let has_dns = challenge.is_some_and(|at| matches!(at.value, AcmeChallenge::Dns01));
    let hook = typed.dns_hook.as_ref().map(|at| ("dns_hook", &at.span));
    let wait = typed.dns_wait.as_ref().map(|at| ("dns_wait", &at.span));
    if let Some((key, span)) = hook.or(wait).filter(|_| !has_dns) {
        let help = "set challenge = \"dns-01\", or leave it out";
        return Err(no_effect(span, key, "without the challenge dns-01", help));
    }
    let (Some(challenge), Some(at)) = (challenge.filter(|_| has_dns), &typed.dns_hook) else {
        return match challenge.filter(|_| has_dns) {
            None => Ok(Vec::new()),
            Some(challenge) => Err(Problem::new(&challenge.span, "dns-01 needs a `dns_hook`").help(
                "name a program that creates TXT records: dns_hook = \"/usr/local/bin/dns-record\"",
            )),
        };
    };
    let items = at.items();
    let Some((program, arguments)) = items.split_first() else {
        return Err(Problem::new(&challenge.span, "`dns_hook` is empty").help("name a program"));
    };
    let program = file(context.sources, program)?.to_string_lossy().into_owned();
    let arguments = arguments.iter().map(|argument| Ok(no_control(argument, argument)?.to_owned()));
    std::iter::once(Ok(program)).chain(arguments).collect()
}

fn external_account(typed: &At<file::ExternalAccount>) -> Resolution<ExternalAccount> {
    let key_id = required(&typed.key_id, &typed.span, "key_id", "\"kid-1\"")?;
    let mac_key = required(&typed.mac_key, &typed.span, "mac_key", "\"{file.secrets/acme-key}\"")?;
    let text = mac_key.trim().trim_end_matches('=');
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // base64 encodes a single byte as two characters, so the last group of a text never has only
    // one character.
    if text.is_empty() || text.len() % 4 == 1 || !text.bytes().all(is_base64url) {
        return Err(Problem::new(&mac_key.span, "this key is not base64url")
            .help("copy it as the authority shows it: letters, digits, - and _"));
    }
    let key_id = no_control(key_id, key_id)?.to_owned();
    Ok(ExternalAccount { key_id, mac_key: Secret::new(text.to_owned()) })
}

/// Checks the keys of client certificates. Returns `None` without `client_ca`.
fn clients(
    context: &Context<'_>,
    typed: &file::Tls,
    listen: &[Listen],
) -> Resolution<Option<ClientAuth>> {
    let Some(ca) = &typed.client_ca else {
        let spans = [
            ("client_auth", typed.client_auth.as_ref().map(|at| &at.span)),
            ("client_subject_field", typed.client_subject_field.as_ref().map(|at| &at.span)),
        ];
        return match spans.into_iter().find_map(|(key, span)| Some((key, span?))) {
            None => Ok(None),
            Some((key, span)) => Err(no_effect(
                span,
                key,
                "without `client_ca`",
                "name the authorities of client certificates: client_ca = \"ca.pem\"",
            )),
        };
    };
    if !listen.iter().all(Listen::is_https) {
        return Err(Problem::new(&ca.span, "this site also listens without TLS")
            .label("a client without TLS shows no certificate")
            .help("give the listener without TLS a site of its own, with a redirect"));
    }
    let field = typed.client_subject_field.as_ref();
    Ok(Some(ClientAuth {
        ca: file(context.sources, ca)?,
        is_required: !matches!(
            typed.client_auth.as_ref().map(|at| at.value),
            Some(file::ClientAuth::Request)
        ),
        subject_field: field.map(field_name).transpose()?,
    }))
}

fn field_name(typed: &At<String>) -> Resolution<String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if typed.is_empty() || !typed.bytes().all(is_name) {
        let message = format!("\"{}\" cannot be the name of this field", typed.value);
        return Err(Problem::new(&typed.span, message)
            .help("letters, digits and hyphens, such as \"X-SSL-Client-S-DN\""));
    }
    Ok(typed.value.clone())
}

/// Returns the port of the `https://` URLs for `redirect_to_https`. Returns `None` if the site does
/// not redirect.
pub(super) fn redirect(
    context: &Context<'_>,
    site: &At<file::Site>,
    listen: &[Listen],
) -> Resolution<Option<u16>> {
    let Some(typed) = site.redirect_to_https.as_ref().filter(|at| at.value) else {
        return Ok(None);
    };
    if listen.iter().all(Listen::is_https) && context.is_default(&typed.span) {
        return Ok(None);
    }
    if listen.iter().all(Listen::is_https) {
        let help = "listen without TLS, too: listen = [\"0.0.0.0:80\", \"https://0.0.0.0:443\"]";
        let why = "if all listeners use TLS";
        return Err(no_effect(&typed.span, "redirect_to_https", why, help));
    }
    let port =
        listen.iter().filter(|listen| listen.is_https()).find_map(|listen| match listen.socket() {
            Listen::Tcp(address) => Some(address.port()),
            _ => None,
        });
    // If the site has no TLS listener on a port, another program may serve TLS on the default port.
    Ok(Some(port.unwrap_or(443)))
}

/// Returns the HTTP/3 listeners of the site, if enabled: one for each of its `https://` listeners.
pub(super) fn http3(
    context: &Context<'_>,
    site: &At<file::Site>,
    listen: &[Listen],
) -> Resolution<Vec<Listen>> {
    let Some(typed) = site.http3.as_ref().filter(|at| at.value) else { return Ok(Vec::new()) };
    if !listen.iter().any(Listen::is_https) && context.is_default(&typed.span) {
        return Ok(Vec::new());
    }
    if !listen.iter().any(Listen::is_https) {
        let help = "listen with TLS: listen = \"https://0.0.0.0:443\"";
        return Err(no_effect(&typed.span, "http3", "without an https:// listener", help));
    }
    let beside: Vec<_> = listen.iter().filter_map(Listen::beside_for_http3).collect();
    if beside.len() < listen.iter().filter(|listen| listen.is_https()).count() {
        let message = "HTTP/3 needs UDP, which Unix sockets and sockets of a service manager lack";
        return Err(Problem::new(&typed.span, message)
            .help("listen on an address: listen = \"https://0.0.0.0:443\""));
    }
    if let Some(at) = site.proxy_protocol.as_ref().filter(|at| at.value) {
        return Err(Problem::new(&typed.span, "HTTP/3 has no PROXY header")
            .also(&at.span, "required here")
            .help("leave out `http3`, or give the proxy a listener of its own"));
    }
    if let Some(at) = site.tls.as_ref().and_then(|tls| tls.client_ca.as_ref()) {
        return Err(Problem::new(
            &typed.span,
            "clients are not asked for a certificate over HTTP/3",
        )
        .also(&at.span, "asked for one here")
        .help("leave out `http3` for this site"));
    }
    Ok(beside)
}

/// The protocol of each socket, and the position in the file that set it first.
pub(super) type Spoken = HashMap<Listen, (&'static str, Range<usize>)>;

/// Checks that all sites use a socket with the same protocol.
pub(super) fn agree(listen: &Listen, span: &Range<usize>, spoken: &mut Spoken) -> Resolution<()> {
    let socket = listen.socket();
    if matches!(socket, Listen::Tcp(address) if address.port() == 0) {
        return Ok(());
    }
    let how = match listen {
        Listen::Https(_) | Listen::Http3(_) => "with TLS",
        Listen::Ajp(_) => "for AJP",
        _ => "without TLS",
    };
    let (first, also) = spoken.entry(socket.clone()).or_insert_with(|| (how, span.clone()));
    if *first == how {
        return Ok(());
    }
    Err(Problem::new(span, format!("{socket} is used both {first} and {how}"))
        .label(format!("{how} here"))
        .also(also, format!("{first} here"))
        .help("give each a port of its own, such as 80 and 443"))
}

pub(super) fn backend_tls(
    context: &Context<'_>,
    typed: &At<file::BackendTls>,
) -> Resolution<BackendTls> {
    let optional =
        |key: &Option<At<String>>| key.as_ref().map(|at| file(context.sources, at)).transpose();
    let client = match (&typed.client_certificate, &typed.client_key) {
        (Some(certificate), Some(key)) => {
            Some((file(context.sources, certificate)?, file(context.sources, key)?))
        }
        (None, None) => None,
        (Some(at), None) | (None, Some(at)) => {
            return Err(Problem::new(&at.span, "a certificate and its key belong together")
                .help("give both: client_certificate = \"cert.pem\", client_key = \"key.pem\""));
        }
    };
    Ok(BackendTls {
        ca: optional(&typed.ca)?,
        server_name: typed.server_name.as_ref().map(|at| at.value.clone()),
        client,
        is_unverified: typed.verify.as_ref().is_some_and(|at| !at.value),
    })
}

const RATE: Rate = Rate { requests: 100, period: Duration::from_secs(3600) };
const BURST: u32 = 20;
const CONCURRENT: usize = 4;
const WAIT: Duration = Duration::from_secs(20);
const CERTIFICATES: usize = 10_000;

/// Checks the settings. `acme` has no host names, because the names are not known in advance.
pub(super) fn on_demand(
    context: &Context<'_>,
    typed: &At<file::OnDemand>,
    acme: Acme,
    hosts: &[HostPattern],
) -> Resolution<OnDemand> {
    let is_exact = |host: &HostPattern| matches!(host, HostPattern::Exact(_));
    if typed.ask.is_none() && (hosts.is_empty() || !hosts.iter().all(is_exact)) {
        let message = "clients could get a certificate for any name";
        return Err(Problem::new(&typed.span, message).help(
            "name the hosts in `hosts` or `hosts_from`, or the URL of an application that permits \
             names: ask = \"http://127.0.0.1:3000/may-have\"",
        ));
    }
    let count = |typed: &Option<At<usize>>, default, range| {
        typed.as_ref().map_or(Ok(default), |at| within(at, range))
    };
    let mut ask = typed.ask.as_ref().map(ask_url).transpose()?;
    match (ask.as_mut().and_then(|ask| ask.tls.as_mut()), &typed.ca) {
        (Some(tls), Some(at)) => tls.ca = Some(file(context.sources, at)?),
        (None, Some(at)) => {
            let help = "leave it out, or set `ask` to an https:// URL";
            return Err(no_effect(&at.span, "ca", "without an https:// `ask`", help));
        }
        (_, None) => {}
    }
    Ok(OnDemand {
        acme,
        ask,
        rate: typed.rate.as_ref().map_or(RATE, |at| at.value),
        burst: typed.burst.as_ref().map_or(BURST, |at| at.value),
        concurrent: count(&typed.concurrent, CONCURRENT, 1..=100)?,
        wait: time_above_zero(&typed.wait, WAIT)?,
        certificates: count(&typed.certificates, CERTIFICATES, 1..=10_000_000)?,
    })
}

/// Parses the URL of the service that permits names.
fn ask_url(typed: &At<String>) -> Resolution<AskUrl> {
    let url = text(typed)?;
    let wrong = |why: &str| {
        Problem::new(&typed.span, format!("\"{url}\" cannot be asked: {why}"))
            .help("write the URL of your application, such as \"http://127.0.0.1:3000/may-have\"")
    };
    let (rest, port, tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80, None),
        (None, Some(rest)) => (rest, 443, Some(BackendTls::default())),
        (None, None) => return Err(wrong("no http:// or https:// URL")),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let is_url = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
    if !path.bytes().all(is_url) {
        return Err(wrong("its path has other characters than a URL"));
    }
    let host = if host_and_port(authority) {
        authority.to_owned()
    } else if host_and_port(&format!("{authority}:{port}")) {
        format!("{authority}:{port}")
    } else {
        return Err(wrong("no host"));
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let separator = if path.contains('?') { '&' } else { '?' };
    let target = format!("{slash}{path}{separator}domain=");
    Ok(AskUrl { host, tls, authority: authority.to_owned(), target })
}
