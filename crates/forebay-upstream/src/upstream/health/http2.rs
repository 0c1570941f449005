//! Health check over HTTP/2, on its own connection.

use std::time::Instant;

use forebay_wire::fields;
use forebay_wire::http2::{Cause, Config, Connection, ErrorCode, Event, RequestPseudo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::TextSearch;

/// Size of the input buffer, in bytes. It holds the largest frame that the codec takes whole.
const INBOX: usize = 32 * 1024;

/// Requests `path` and returns the reply's status, or the reason of a failure. Reads the reply's
/// body until `search` is done.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    scheme: &str,
    authority: &str,
    path: &str,
    search: &mut TextSearch<'_>,
    mut stream: S,
) -> Result<u16, String> {
    let mut codec = Connection::client(Config::default());
    let request = RequestPseudo {
        method: b"GET",
        scheme: scheme.as_bytes(),
        authority: authority.as_bytes(),
        path: path.as_bytes(),
        protocol: b"",
    };
    let fields = fields::of_lines(b"user-agent: forebay (health check)\r\n");
    codec.send_request(&request, fields, true).map_err(|error| error.to_string())?;
    let (mut input, mut answer) = (Vec::new(), CheckReply::default());
    loop {
        write_out(&mut codec, &mut stream).await?;
        input.reserve(INBOX);
        match stream.read_buf(&mut input).await {
            Ok(0) => return Err("it closed the connection without an answer".into()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        take_in(&mut codec, &mut input, &mut answer, search)?;
        if let Some(status) = answer.status.filter(|_| answer.is_complete(search)) {
            codec.goaway(ErrorCode::NO_ERROR);
            // The answer is complete, so ignore a failure to send the GOAWAY.
            let _ = write_out(&mut codec, &mut stream).await;
            return Ok(status);
        }
    }
}

async fn write_out<S: AsyncWrite + Unpin>(
    codec: &mut Connection,
    stream: &mut S,
) -> Result<(), String> {
    let len = codec.output().len();
    stream.write_all(codec.output()).await.map_err(|error| error.to_string())?;
    codec.wrote(len);
    // TLS may hold a part back.
    stream.flush().await.map_err(|error| error.to_string())
}

/// A reply, as far as it has arrived.
#[derive(Default)]
struct CheckReply {
    status: Option<u16>,
    has_ended: bool,
}

impl CheckReply {
    fn is_complete(&self, search: &TextSearch<'_>) -> bool {
        self.status.is_some() && (self.has_ended || search.is_done())
    }
}

/// Decodes the input, up to the end of the reply.
fn take_in(
    codec: &mut Connection,
    input: &mut Vec<u8>,
    answer: &mut CheckReply,
    search: &mut TextSearch<'_>,
) -> Result<(), String> {
    let speaks_http1 = input.starts_with(b"HTTP/1.");
    let mut at = 0;
    while !answer.is_complete(search) {
        let step = codec.receive(&input[at..], Instant::now()).map_err(|error| {
            if speaks_http1 { "it speaks HTTP/1.1, not HTTP/2".into() } else { error.to_string() }
        })?;
        let before = at;
        at += step.consumed;
        match step.event {
            Some(Event::Head { head, end, .. }) => {
                answer.status = Some(head.status);
                answer.has_ended = end;
            }
            Some(Event::Data { stream, data, end }) => {
                codec.consume(stream, data.len(), Instant::now());
                search.push(&input[before + data.start..before + data.end]);
                answer.has_ended = end;
            }
            Some(Event::Trailers { .. }) => answer.has_ended = true,
            Some(Event::Reset { cause, .. }) => return Err(refusal(cause)),
            Some(_) => {}
            None => break,
        }
    }
    input.drain(..at);
    Ok(())
}

fn refusal(cause: Cause) -> String {
    match cause {
        Cause::Peer(code) => format!("it reset the stream ({code})"),
        Cause::Rule(rule) => rule.to_string(),
        Cause::Unprocessed => "it closed the connection (GOAWAY) before it took the request".into(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    const PREFACE: usize = 24;

    /// Returns a frame of stream `id`.
    fn frame(kind: u8, flags: u8, id: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, id];
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns the result for a backend that answers the first bytes with `reply` and then closes.
    async fn asked(reply: Vec<u8>) -> Result<u16, String> {
        asked_for(None, reply).await.0
    }

    /// Like [`asked`]. Also returns true if the text was found.
    async fn asked_for(text: Option<&str>, reply: Vec<u8>) -> (Result<u16, String>, bool) {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let backend = async move |mut theirs: DuplexStream| {
            let mut first = vec![0; PREFACE + 9];
            theirs.read_exact(&mut first).await.unwrap();
            assert!(first.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
            theirs.write_all(&reply).await.unwrap();
            theirs.shutdown().await.unwrap();
            // Read on, so that later writes to the connection succeed.
            let _ = theirs.read_to_end(&mut first).await;
        };
        let mut search = TextSearch::new(text);
        let asking = ask("http", "10.0.0.1", "/healthz", &mut search, ours);
        let status = tokio::join!(asking, backend(theirs)).0;
        (status, search.has_found())
    }

    #[tokio::test]
    async fn the_text_is_found_across_frames() {
        let settings = frame(4, 0, 0, b"");
        let head = frame(1, 4, 1, b"\x88");
        let (first, last) = (frame(0, 0, 1, b"we"), frame(0, 1, 1, b"ll"));
        let reply = [settings, head, first, last].concat();
        assert_eq!(asked_for(Some("well"), reply.clone()).await, (Ok(200), true));
        assert_eq!(asked_for(Some("welll"), reply).await, (Ok(200), false));
    }

    #[tokio::test]
    async fn the_status_is_that_of_the_final_reply() {
        let settings = frame(4, 0, 0, b"");
        // `:status: 103` as a literal, then the indexed `:status: 204`.
        let interim = frame(1, 4, 1, b"\x08\x03103");
        let reply = frame(1, 5, 1, b"\x89");
        assert_eq!(asked([settings, interim, reply].concat()).await, Ok(204));
    }

    #[tokio::test]
    async fn invalid_answers_are_errors() {
        let settings = frame(4, 0, 0, b"");
        let error = asked(settings.clone()).await.unwrap_err();
        assert_eq!(error, "it closed the connection without an answer");
        let reset = frame(3, 0, 1, &[0, 0, 0, 7]);
        let error = asked([&settings[..], &reset].concat()).await.unwrap_err();
        assert_eq!(error, "it reset the stream (REFUSED_STREAM)");
        let goaway = frame(7, 0, 0, &[0; 8]);
        let error = asked([&settings[..], &goaway].concat()).await.unwrap_err();
        assert!(error.contains("GOAWAY"), "{error}");
        let error = asked(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await.unwrap_err();
        assert_eq!(error, "it speaks HTTP/1.1, not HTTP/2");
    }
}
