//! Resolves the mode and owner of the Unix sockets of a site.

use std::collections::HashMap;
use std::ops::Range;

use super::Resolution;
use super::server::name;
use crate::error::Problem;
use crate::file::{self, At};
use crate::key::no_effect;
use crate::plan::{Listen, SocketAccess};

/// The mode and owner of each Unix socket, and the position in the file that set them first.
pub(super) type Sockets = HashMap<Listen, (SocketAccess, Range<usize>)>;

/// Returns the mode and owner of the Unix sockets of a site. All sites of a listener must have the
/// same values.
pub(super) fn socket_access(
    site: &At<file::Site>,
    listen: &[Listen],
    sockets: &mut Sockets,
) -> Resolution<SocketAccess> {
    let spans = [
        ("socket_mode", site.socket_mode.as_ref().map(|at| &at.span)),
        ("socket_user", site.socket_user.as_ref().map(|at| &at.span)),
        ("socket_group", site.socket_group.as_ref().map(|at| &at.span)),
    ];
    let typed = spans.into_iter().find_map(|(key, span)| Some((key, span?)));
    let unix: Vec<_> = listen
        .iter()
        .map(Listen::socket)
        .filter(|socket| matches!(socket, Listen::Unix(_)))
        .collect();
    if let (Some((key, span)), true) = (typed, unix.is_empty()) {
        let help = "listen on a Unix socket, such as listen = \"unix:/run/site.sock\"";
        return Err(no_effect(span, key, "without a unix: listener", help));
    }
    let mode = site.socket_mode.as_ref().map_or(Ok(SocketAccess::default().mode), mode)?;
    let (user, group) = (name(&site.socket_user)?, name(&site.socket_group)?);
    let access = SocketAccess { mode, user, group };
    let span = typed.map_or(&site.span, |(_, span)| span);
    for socket in unix {
        let (first, also) =
            sockets.entry(socket.clone()).or_insert_with(|| (access.clone(), span.clone()));
        if *first != access {
            return Err(Problem::new(span, format!("two sites on {socket} differ"))
                .label("one mode, owner and group here")
                .also(also, "and others here")
                .help("give all sites of a socket the same `socket_` keys"));
        }
    }
    Ok(access)
}

/// Parses permission bits in octal.
fn mode(typed: &At<String>) -> Resolution<u32> {
    let digits = typed.strip_prefix("0o").unwrap_or(typed);
    let is_octal = (3..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    match u32::from_str_radix(digits, 8) {
        Ok(mode @ 0..=0o777) if is_octal => Ok(mode),
        _ => {
            let message = format!("\"{}\" is not the mode of a socket", typed.value);
            Err(Problem::new(&typed.span, message)
                .help("write permission bits in octal, such as \"0660\" or \"0666\""))
        }
    }
}
