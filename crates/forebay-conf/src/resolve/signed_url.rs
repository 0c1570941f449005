//! Resolves `signed_url` of a route.

use super::Resolution;
use super::effect::no_effect;
use super::template::{Known, template};
use super::value::{required, text};
use crate::error::Problem;
use crate::file::{self, At, SignatureAlgorithm};
use crate::plan::{Placeholder, Secret, SignedUrl, Template, TemplatePart};

/// The shortest secret in bytes. With `md5`, any length is accepted, because secrets of such URLs
/// were chosen for nginx.
const SHORTEST_SECRET: usize = 32;

pub(super) fn signed_url(typed: &At<file::SignedUrl>, known: Known<'_>) -> Resolution<SignedUrl> {
    let is_md5 = typed.algorithm == Some(SignatureAlgorithm::Md5);
    let secret_at = required(&typed.secret, &typed.span, "secret", "\"{env.LINK_SECRET}\"")?;
    let secrets: Vec<_> =
        secret_at.items().iter().map(|at| secret(at, is_md5)).collect::<Resolution<_>>()?;
    if secrets.is_empty() {
        return Err(Problem::new(&secret_at.span, "this list is empty")
            .help("give a secret, such as \"{env.LINK_SECRET}\""));
    }
    let parsed = match &typed.text {
        Some(at) => template(text(at)?, at, known)?,
        None => template("{query.expires} {path}", typed, known)?,
    };
    if let Some(at) = &typed.text {
        contains_the_resource(at, &parsed)?;
        if !is_md5 {
            is_separated(at, &parsed)?;
        }
    }
    let signature = match &typed.signature {
        Some(at) => text(at)?.to_owned(),
        None => "signature".to_owned(),
    };
    Ok(SignedUrl { secrets, expires: expires(typed, &parsed)?, text: parsed, signature, is_md5 })
}

pub(super) fn secret(typed: &At<&String>, is_md5: bool) -> Resolution<Secret> {
    let secret = text(typed)?;
    if secret.len() < SHORTEST_SECRET && !is_md5 {
        return Err(Problem::new(&typed.span, "this secret has fewer than 32 bytes").help(
            "a short secret can be guessed from one URL: use the output of `openssl rand -hex 32`",
        ));
    }
    Ok(Secret::new(secret.to_owned()))
}

/// Checks that the text contains the requested path or a part of it. Otherwise one signature would
/// open all paths.
fn contains_the_resource(typed: &At<String>, parsed: &Template) -> Resolution<()> {
    let names_path = |value: &Placeholder| {
        matches!(
            value,
            Placeholder::Path | Placeholder::Uri | Placeholder::Rest | Placeholder::Capture(_)
        )
    };
    if parsed.uses(names_path) {
        return Ok(());
    }
    Err(Problem::new(&typed.span, "this text fits every path")
        .label("one signature would open the whole route")
        .help("add {path}, as in \"{query.expires} {path}\""))
}

/// Checks that a space separates two placeholders. Otherwise bytes could move from one value to the
/// next one, and the signature would still fit.
fn is_separated(typed: &At<String>, parsed: &Template) -> Resolution<()> {
    let mut has_space = true;
    for part in parsed.parts() {
        match part {
            TemplatePart::Text(text) => has_space |= text.contains(' '),
            TemplatePart::Value(_) if !has_space => {
                return Err(Problem::new(&typed.span, "no space separates two placeholders")
                    .label("several URLs would have the same signature")
                    .help("write a space between them, as in \"{query.expires} {path}\""));
            }
            TemplatePart::Value(_) => has_space = false,
        }
    }
    Ok(())
}

/// Returns the parameter with the time of expiry, which must be a part of the signed text. Returns
/// `None` if the signed URLs do not expire.
fn expires(typed: &At<file::SignedUrl>, parsed: &Template) -> Resolution<Option<String>> {
    let name = match &typed.expires {
        Some(at) => text(at)?,
        None => "expires",
    };
    let is_signed =
        parsed.uses(|value| matches!(value, Placeholder::Parameter(other) if other == name));
    match (&typed.expires, is_signed) {
        (_, true) => Ok(Some(name.to_owned())),
        (None, false) => Ok(None),
        (Some(at), false) => {
            let why = "on a time that `text` does not contain, because clients could change it";
            let help = format!("add {{query.{name}}} to `text`, or leave `expires` out");
            Err(no_effect(&at.span, "expires", why, &help))
        }
    }
}
