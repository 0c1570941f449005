//! Asks the application at the configured URL (`ask`) if a host name may have a certificate.

use std::io;
use std::time::Duration;

use forebay_conf::AskUrl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time limit for one question, from the connection to the status.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read to find the status of a reply.
const LONGEST_REPLY: usize = 16 * 1024;

/// Returns true if the application answers with the status 200. Does not follow redirects. `name` has
/// only letters, digits, hyphens and dots.
pub async fn ask(url: &AskUrl, name: &str) -> Result<bool, String> {
    let answer = tokio::time::timeout(PATIENCE, status(url, name)).await;
    match answer {
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        // The application has failed, so the answer says nothing about the name.
        Ok(Ok(status @ 500..)) => Err(format!("status {status}")),
        Ok(Ok(status)) => Ok(status == 200),
    }
}

async fn status(url: &AskUrl, name: &str) -> io::Result<u16> {
    let AskUrl { host, authority, target } = url;
    let mut stream = TcpStream::connect(host).await?;
    let head = format!(
        "GET {target}{name} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: forebay/{}\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(head.as_bytes()).await?;
    let mut reply = Vec::new();
    while reply.len() < LONGEST_REPLY {
        if let Some(status) = final_status(&reply)? {
            return Ok(status);
        }
        if stream.read_buf(&mut reply).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Err(io::Error::other("its reply has no status in the first 16 KiB"))
}

/// Returns the status of the final reply. Skips interim replies before it. Returns `None` if the
/// status line of the final reply has not arrived completely.
fn final_status(mut reply: &[u8]) -> io::Result<Option<u16>> {
    let find = |text: &[u8], end: &[u8]| text.windows(end.len()).position(|part| part == end);
    loop {
        let Some(end) = find(reply, b"\n") else { return Ok(None) };
        let line = reply[..end].strip_suffix(b"\r").unwrap_or(&reply[..end]);
        let status = status_of(line).ok_or_else(|| io::Error::other("its reply is not HTTP"))?;
        if !(100..200).contains(&status) {
            return Ok(Some(status));
        }
        let Some(end) = find(reply, b"\r\n\r\n") else { return Ok(None) };
        reply = &reply[end + 4..];
    }
}

/// Returns the status in a line such as `HTTP/1.1 200 OK`.
fn status_of(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, rest) = rest.split_at_checked(3)?;
    let is_whole =
        digits.iter().all(u8::is_ascii_digit) && matches!(rest.first(), None | Some(b' '));
    is_whole.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_status_line_counts() {
        let status =
            |reply: &str| final_status(reply.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(status("HTTP/1.1 200 OK\r\n"), Ok(Some(200)));
        assert_eq!(status("HTTP/1.0 404\r\n"), Ok(Some(404)));
        assert_eq!(status("HTTP/1.1 200 OK"), Ok(None));
        assert_eq!(
            status("HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 403 No\r\n"),
            Ok(Some(403))
        );
        assert_eq!(status("HTTP/1.1 100 Continue\r\nX: HTTP/1.1 200\r\n"), Ok(None));
        for broken in ["HTTP/1.1 2000 OK\r\n", "HTTP/1.1 20\r\n", "HTTP/2 200\r\n", "\n", "200\r\n"]
        {
            assert!(status(broken).is_err(), "{broken}");
        }
    }
}
