//! Asks the application at the configured URL (`ask`) if a host name may have a certificate.

use std::io;
use std::time::Duration;

use forebay_conf::AskUrl;
use forebay_net::tls::{Alpn, ClientTls};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time limit for one question, from the connection to the status.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read to find the status of a reply.
const LONGEST_REPLY: usize = 16 * 1024;

/// Asks the application at `url` if the host `name` may have a certificate. Returns true for the
/// status 200, and false for other statuses below 500. Returns an error for a status of 500 or
/// more, and if no valid answer arrives. Does not follow redirects. `name` has only letters,
/// digits, hyphens and dots. If `url` begins with https://, `tls` is required.
pub async fn ask(url: &AskUrl, tls: Option<&ClientTls>, name: &str) -> Result<bool, String> {
    let answer = tokio::time::timeout(PATIENCE, status(url, tls, name)).await;
    match answer {
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        // The application has failed, so the answer says nothing about the name.
        Ok(Ok(status @ 500..)) => Err(format!("status {status}")),
        Ok(Ok(status)) => Ok(status == 200),
    }
}

async fn status(url: &AskUrl, tls: Option<&ClientTls>, name: &str) -> io::Result<u16> {
    let AskUrl { host, authority, target, .. } = url;
    let request = format!(
        "GET {target}{name} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: forebay/{}\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    let socket = TcpStream::connect(host).await?;
    match (&url.tls, tls) {
        (None, _) => converse(socket, &request).await,
        (Some(_), Some(tls)) => {
            let name = host.rsplit_once(':').map_or(&**host, |(name, _)| name);
            converse(tls.connect(socket, name, Alpn::Http11).await?, &request).await
        }
        // The URL begins with https://, so the name must not be sent unencrypted.
        (Some(_), None) => Err(io::Error::other("the TLS settings are missing")),
    }
}

/// Sends the request, and returns the status of its reply.
async fn converse<S>(mut stream: S, request: &str) -> io::Result<u16>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
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
/// status line of the final reply has not arrived completely. Fails if the reply is not HTTP.
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

/// Returns the status in a line such as `HTTP/1.1 200 OK`, or `None` if the line is not valid.
fn status_of(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, rest) = rest.split_at_checked(3)?;
    let is_whole =
        digits.iter().all(u8::is_ascii_digit) && matches!(rest.first(), None | Some(b' '));
    is_whole.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Arc;

    use forebay_conf::BackendTls;
    use forebay_testkit::tls::{Authority, Identity};
    use rustls::{ServerConnection, StreamOwned};

    use super::*;

    /// Answers one question over TLS in another thread. Returns the port.
    fn server(identity: &Identity, reply: &'static str) -> u16 {
        let config = Arc::new(identity.server());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let session = ServerConnection::new(config).unwrap();
            let mut stream = StreamOwned::new(session, socket);
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
                head.push(byte[0]);
            }
            if head.starts_with(b"GET /may?domain=a.test HTTP/1.1\r\nHost: ") {
                // Byte by byte, so that the reply arrives in parts.
                for byte in reply.bytes() {
                    let _ = stream.write_all(&[byte]);
                }
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        port
    }

    #[test]
    fn an_application_over_tls_is_asked_only_if_its_certificate_is_valid() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, other) = (Authority::new("ours"), Authority::new("other"));
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, &ours.pem).unwrap();
        let settings = BackendTls { ca: Some(path), ..BackendTls::default() };
        let tls = ClientTls::load(&settings).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let granted = "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\n";
        for (identity, reply, expected) in [
            (ours.issue(&["localhost"]), granted, Ok(true)),
            (ours.issue(&["localhost"]), "HTTP/1.1 404 No\r\n", Ok(false)),
            (ours.issue(&["localhost"]), "HTTP/1.1 20", Err("unexpected end of file")),
            (ours.issue(&["elsewhere.test"]), granted, Err("invalid peer certificate")),
            (ours.issue_expired(&["localhost"]), granted, Err("invalid peer certificate")),
            (other.issue(&["localhost"]), granted, Err("invalid peer certificate")),
        ] {
            let port = server(&identity, reply);
            let url = AskUrl {
                host: format!("localhost:{port}"),
                tls: Some(settings.clone()),
                authority: format!("localhost:{port}"),
                target: "/may?domain=".into(),
            };
            let answer = runtime.block_on(ask(&url, Some(&tls), "a.test"));
            match (&answer, expected) {
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (Ok(answer), Ok(expected)) => assert_eq!(*answer, expected),
                _ => panic!("{answer:?} instead of {expected:?}"),
            }
            assert!(runtime.block_on(ask(&url, None, "a.test")).is_err());
        }
    }

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
