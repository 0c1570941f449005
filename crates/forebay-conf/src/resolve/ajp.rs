//! A route to servlet containers.

use super::upstream::of_route;
use super::value::{optional_time_above_zero, size, text};
use super::{Context, Outcome};
use crate::error::Problem;
use crate::file::{self, At, File, Size, Table};
use crate::plan::{Ajp, Ping, Scheme, Secret};

pub(super) fn ajp(
    context: &Context<'_>,
    file: &File,
    typed: &At<Table<file::Ajp>>,
) -> Outcome<Ajp> {
    let table: &file::Ajp = &typed.value;
    Ok(Ajp {
        upstream: of_route(context, file, Scheme::Ajp, &typed.span, &table.into())?,
        secret: match &typed.secret {
            Some(at) => Some(Secret::new(text(at)?.to_owned())),
            None => None,
        },
        packet_size: packet_size(&typed.packet_size)?,
        ping: match typed.ping {
            Some(file::Ping::Connect) => Ping::Connect,
            Some(file::Ping::Always) => Ping::Always,
            Some(file::Ping::Off) | None => Ping::Off,
        },
        reply_timeout: optional_time_above_zero(&typed.reply_timeout)?,
    })
}

/// As Tomcat has it unless told otherwise, and what its documentation calls the largest.
fn packet_size(typed: &Option<Size>) -> Outcome<usize> {
    let (Some(at), Some(size)) = (typed, size(typed)?) else { return Ok(8192) };
    match usize::try_from(size) {
        Ok(size @ 8192..=65_536) => Ok(size),
        _ => Err(Problem::new(&at.span, format!("packets of {size} bytes cannot be sent"))
            .help("write 8192 to 65536, and the same as packetSize of Tomcat's connector")),
    }
}
