//! Health check over HTTP/1.1, on its own connection.

use forebay_conf as conf;
use forebay_wire::http1::{BodyDecoder, Http1Limits, ResponseHead, ResponseParser};
use forebay_wire::reply::{ReplyReader, ReplyStep};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{TextSearch, announce};

/// Sends `request` and returns the reply's status, or the reason of a failure. Reads the reply's
/// body until `search` is done. If `strict` is false, accepts the oddities that are accepted in
/// replies to clients' requests.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    request: &[u8],
    strict: bool,
    search: &mut TextSearch<'_>,
    mut stream: S,
) -> Result<u16, String> {
    stream.write_all(request).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())?;
    let heads = ReplyReader::new(ResponseParser::new(Http1Limits::default(), false));
    let mut heads = heads.strict(strict);
    let mut head = ResponseHead::default();
    let mut bytes = Vec::new();
    loop {
        if read(&mut stream, &mut bytes).await? == 0 {
            return Err("it closed the connection without an answer".into());
        }
        loop {
            let step = heads.read_mending(&mut bytes, &mut head);
            match step.map_err(|error| error.to_string())? {
                ReplyStep::Partial => break,
                ReplyStep::Interim(len) => drop(bytes.drain(..len)),
                ReplyStep::Final(len) => {
                    bytes.drain(..len);
                    let body = BodyDecoder::response(head.framing).lenient_unless(strict);
                    read_body(body, bytes, search, stream).await?;
                    return Ok(head.status);
                }
            }
        }
    }
}

/// Reads the body, whose first bytes are in `bytes`, until `search` is done.
async fn read_body<S: AsyncRead + Unpin>(
    mut decoder: BodyDecoder,
    mut bytes: Vec<u8>,
    search: &mut TextSearch<'_>,
    mut stream: S,
) -> Result<(), String> {
    while !search.is_done() {
        let step = decoder.decode(&bytes).map_err(|error| error.to_string())?;
        search.push(&bytes[step.data.clone()]);
        bytes.drain(..step.consumed);
        if step.done {
            break;
        }
        if step.consumed == 0 && read(&mut stream, &mut bytes).await? == 0 {
            if decoder.ends_at_close() {
                break;
            }
            return Err("it closed the connection in the middle of its answer".into());
        }
    }
    Ok(())
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S, bytes: &mut Vec<u8>) -> Result<usize, String> {
    stream.read_buf(bytes).await.map_err(|error| error.to_string())
}

/// Returns the request for `path`, after the PROXY header that the backend expects.
pub fn request(path: &str, authority: &str, send_proxy: Option<conf::ProxyHeader>) -> Vec<u8> {
    let mut request = Vec::new();
    if let Some(version) = send_proxy {
        announce::append_local(&mut request, version);
    }
    request.extend_from_slice(
        format!(
            "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: forebay (health check)\r\n\
             Connection: close\r\n\r\n"
        )
        .as_bytes(),
    );
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for a backend that answers with these pieces and then closes, and true if
    /// the text was found.
    async fn asked(pieces: &[&str], text: Option<&str>) -> (Result<u16, String>, bool) {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let backend = async {
            let mut first = [0; 4];
            theirs.read_exact(&mut first).await.unwrap();
            for piece in pieces {
                // The check may have closed the connection.
                let _ = theirs.write_all(piece.as_bytes()).await;
                tokio::task::yield_now().await;
            }
            drop(theirs);
        };
        let mut search = TextSearch::new(text);
        let (status, ()) = tokio::join!(ask(b"GET ", false, &mut search, ours), backend);
        (status, search.has_found())
    }

    #[tokio::test]
    async fn the_text_is_found_across_pieces_and_chunks() {
        let head = "HTTP/1.1 103 X\r\n\r\nHTTP/1.1 200 OK\r\n";
        let sized = [head, "Content-Length: 9\r\n\r\n", "all is w", "ell, etc."];
        assert_eq!(asked(&sized, Some("is w")).await, (Ok(200), true));
        assert_eq!(asked(&sized, Some("is we")).await, (Ok(200), true), "the length is 9");
        assert_eq!(asked(&sized, Some("etc")).await, (Ok(200), false), "after the body");
        assert_eq!(asked(&sized, None).await, (Ok(200), true), "no text is required");
        let chunked =
            [head, "Transfer-Encoding: chunked\r\n\r\n", "2\r\nO", "P\r\n1\r\nS\r\n0\r\n\r\n"];
        assert_eq!(asked(&chunked, Some("OPS")).await, (Ok(200), true));
        assert_eq!(asked(&chunked, Some("OPS!")).await, (Ok(200), false));
        assert_eq!(asked(&chunked, Some("1")).await, (Ok(200), false), "a length of a chunk");
        let until_close = ["HTTP/1.0 200 OK\r\n\r\nwe", "ll"];
        assert_eq!(asked(&until_close, Some("well")).await, (Ok(200), true));
        assert_eq!(asked(&until_close, Some("ill")).await, (Ok(200), false));
    }

    #[tokio::test]
    async fn a_body_that_is_cut_off_is_no_answer() {
        let cut = ["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall"];
        let (status, found) = asked(&cut, Some("well")).await;
        assert!(status.unwrap_err().contains("in the middle") && !found);
        assert_eq!(asked(&cut, Some("all")).await, (Ok(200), true), "the rest does not matter");
        assert!(asked(&["HTTP/1.1 200 OK\r\n"], None).await.0.is_err());
    }

    #[tokio::test]
    async fn only_the_first_part_of_a_long_body_is_read() {
        let long = "x".repeat(TextSearch::MOST);
        let pieces = ["HTTP/1.1 200 OK\r\n\r\n", &long, "well"];
        assert_eq!(asked(&pieces, Some("well")).await, (Ok(200), false));
        let pieces = ["HTTP/1.1 200 OK\r\n\r\n", &long[..TextSearch::MOST - 4], "well"];
        assert_eq!(asked(&pieces, Some("well")).await, (Ok(200), true));
    }
}
