//! `signed_url`: a signature in the URL permits the request.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::{constant_time, hmac};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_conf::{Placeholder, SignatureAlgorithm, SignedUrl, Template, TemplatePart};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::template::Escape;
use forebay_wire::{aliases, forms};
use md5::{Digest as _, Md5};

/// Maximum length of a signature in characters. SHA-256 has 64 hexadecimal digits.
const LONGEST_SIGNATURE: usize = 64;

/// Checks the signature of the request's URL. The fault is 410 for an expired URL, and 403 for all
/// other errors.
pub fn check(settings: &SignedUrl, request: &Request) -> Result<(), Fault> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |now| now.as_secs());
    check_at(settings, request, now)
}

fn check_at(settings: &SignedUrl, request: &Request, now: u64) -> Result<(), Fault> {
    let invalid = |why: &str| Fault::client(403, format!("the URL is not signed: {why}"));
    let given = only_parameter(request, &settings.signature).ok_or_else(|| {
        invalid("it needs the signature once, in the parameter that `signed_url` names")
    })?;
    let given = decoded(&given).ok_or_else(|| invalid("the signature is malformed"))?;
    let expires = settings.expires.as_deref().map(|name| {
        let time = only_parameter(request, name).and_then(|time| seconds(&time));
        time.ok_or_else(|| invalid("it needs the time of expiry once, in seconds"))
    });
    let expires = expires.transpose()?;
    let is_repeated = |value: &Placeholder| match value {
        Placeholder::Parameter(name) => is_ambiguous(request, name),
        _ => false,
    };
    if settings.text.depends_on(&is_repeated) {
        return Err(invalid("it has a signed parameter more than once, or in another spelling"));
    }
    let text =
        signed_text(settings, request).ok_or_else(|| invalid("a signed value contains a space"))?;
    let fits = |secret: &forebay_conf::Secret| {
        if settings.algorithm == SignatureAlgorithm::Md5 {
            let digest = Md5::new().chain_update(&text).chain_update(secret.as_bytes()).finalize();
            constant_time::verify_slices_are_equal(&digest, &given).is_ok()
        } else {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
            hmac::verify(&key, &text, &given).is_ok()
        }
    };
    if !settings.secrets.iter().any(fits) {
        return Err(invalid("the signature is wrong"));
    }
    // Check the signature first, so that only a client with a signed URL can get 410.
    match expires {
        Some(time) if time < now => Err(Fault::client(410, "the signed URL has expired")),
        _ => Ok(()),
    }
}

/// Returns the text that the signature covers. With HMAC, a space separates the values, so
/// returns `None` if a value contains a space.
fn signed_text(settings: &SignedUrl, request: &Request) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for part in settings.text.parts() {
        let value = match part {
            TemplatePart::Text(constant) => {
                text.extend_from_slice(constant.as_bytes());
                continue;
            }
            TemplatePart::Value(value) => value,
        };
        let start = text.len();
        match value {
            // As in nginx, an MD5 signature covers the decoded path.
            Placeholder::Path if settings.algorithm == SignatureAlgorithm::Md5 => {
                text.extend_from_slice(&request.path);
            }
            value => {
                let one = Template::of(vec![TemplatePart::Value(value.clone())]);
                request.fill(&one, Escape::Field, &mut text);
            }
        }
        if settings.algorithm != SignatureAlgorithm::Md5 && text[start..].contains(&b' ') {
            return None;
        }
    }
    Some(text)
}

/// Returns the value of a parameter that the query has exactly once. If the query had several
/// values, an application might read another one.
fn only_parameter<'r>(request: &'r Request, name: &'r str) -> Option<Cow<'r, [u8]>> {
    let only = aliases::only_parameter(request.query().unwrap_or_default(), name.as_bytes());
    Some(forms::decode(only.ok()??.value))
}

/// Returns true if an application may read another value of the parameter.
fn is_ambiguous(request: &Request, name: &str) -> bool {
    let query = request.query().unwrap_or_default();
    aliases::only_parameter(query, name.as_bytes()).is_err()
}

fn seconds(digits: &[u8]) -> Option<u64> {
    let is_plain = matches!(digits.len(), 1..=18) && digits.iter().all(u8::is_ascii_digit);
    str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
}

/// Decodes a signature in hexadecimal digits or base64url. Returns `None` if the signature is too
/// long or has another form.
fn decoded(typed: &[u8]) -> Option<Vec<u8>> {
    if typed.len() > LONGEST_SIGNATURE {
        return None;
    }
    let is_hex = matches!(typed.len(), 32 | 64) && typed.iter().all(u8::is_ascii_hexdigit);
    if is_hex {
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
        return Some(typed.chunks(2).map(|two| digit(two[0]) << 4 | digit(two[1])).collect());
    }
    let end = typed.iter().rposition(|&byte| byte != b'=').map_or(0, |at| at + 1);
    URL_SAFE_NO_PAD.decode(&typed[..end]).ok()
}
