//! `[site.tls]`, and that listeners with and without TLS are apart.

use std::collections::HashMap;
use std::ops::Range;

use super::effect::no_effect;
use super::path::file;
use super::{Context, Outcome};
use crate::error::Problem;
use crate::file::{self, At, Table};
use crate::plan::{Listen, Tls};

/// The TLS of a site, which there is where one of its listeners speaks it.
pub(super) fn tls(
    context: &Context<'_>,
    site: &At<Table<file::Site>>,
    listen: &[Listen],
) -> Outcome<Option<Tls>> {
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
    if !is_https {
        let help = "listen with TLS: listen = \"https://0.0.0.0:443\"";
        return Err(no_effect(&typed.span, "tls", "without an https:// listener", help));
    }
    let needed = |key: &Option<At<String>>, name: &str, help: &str| match key {
        Some(typed) => file(context, typed),
        None => Err(Problem::new(&typed.span, format!("[site.tls] has no `{name}`")).help(help)),
    };
    Ok(Some(Tls {
        certificate: needed(
            &typed.certificate,
            "certificate",
            "give the file with the certificate and those it was issued by: certificate = \
             \"cert.pem\"",
        )?,
        key: needed(&typed.key, "key", "give the file with its private key: key = \"key.pem\"")?,
        ocsp_staple: typed.ocsp_staple.as_ref().map(|at| file(context, at)).transpose()?,
    }))
}

/// Whether each socket speaks TLS, and where that was said first.
pub(super) type Spoken = HashMap<Listen, (bool, Range<usize>)>;

/// Fails where a socket is to be spoken to with TLS by one site and without by another.
pub(super) fn agree(listen: &Listen, span: &Range<usize>, spoken: &mut Spoken) -> Outcome<()> {
    let socket = listen.socket();
    if matches!(socket, Listen::Tcp(address) if address.port() == 0) {
        return Ok(());
    }
    let (first, also) =
        spoken.entry(socket.clone()).or_insert_with(|| (listen.is_https(), span.clone()));
    if *first == listen.is_https() {
        return Ok(());
    }
    let word = |is_https| if is_https { "with TLS" } else { "without TLS" };
    Err(Problem::new(span, format!("{socket} cannot be listened on with and without TLS"))
        .label(format!("{} here", word(listen.is_https())))
        .also(also, format!("{} here", word(*first)))
        .help("give each a port of its own, as 80 and 443"))
}
