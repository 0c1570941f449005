//! Several ranges in one reply: `multipart/byteranges` (RFC 9110 section 14.6).

use std::hash::{BuildHasher, Hasher, RandomState};

use forebay_net::fault::Fault;
use forebay_server::reply::{Length, Reply};

use super::cache::CachedFile;
use super::conditional::ByteRange;
use super::push;

/// Sends these parts of a file, in this order.
/// `kind` replaces the media type of the file.
pub async fn send(
    reply: &mut Reply,
    (entry, kind): (&CachedFile, Option<&str>),
    parts: &[ByteRange],
) -> Result<(), Fault> {
    let boundary = boundary();
    let kind = kind.unwrap_or(&entry.content_type);
    let heads: Vec<_> =
        parts.iter().map(|part| part_head(&boundary, (kind, entry.length), *part)).collect();
    let end = format!("\r\n--{boundary}--\r\n");
    let lengths = heads.iter().zip(parts).map(|(head, part)| head.len() as u64 + part.length);
    let length = lengths.sum::<u64>() + end.len() as u64;
    reply.begin(206, b"");
    reply.field("Content-Type", format!("multipart/byteranges; boundary={boundary}").as_bytes());
    reply.field_lines().extend_from_slice(entry.fields_but_type());
    reply.end_head(Length::Known(length), false);
    for (head, part) in heads.iter().zip(parts) {
        reply.push(head.as_bytes()).await?;
        push(reply, entry, part.start, part.length).await?;
    }
    reply.push(end.as_bytes()).await?;
    reply.finish().await
}

/// Returns the boundary between parts. The boundary is random, so that the author of a file cannot
/// put the boundary into the file.
fn boundary() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

fn part_head(boundary: &str, (kind, length): (&str, u64), part: ByteRange) -> String {
    let last = part.start + part.length - 1;
    let kind = match kind {
        "" => String::new(),
        kind => format!("Content-Type: {kind}\r\n"),
    };
    format!(
        "\r\n--{boundary}\r\n{kind}Content-Range: bytes {}-{last}/{}\r\n\r\n",
        part.start, length
    )
}
