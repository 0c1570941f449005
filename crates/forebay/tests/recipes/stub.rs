//! Backends in place of real applications: each answers with the request that it got.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Request fields that the answer shows, besides those that begin with `x-`.
const SHOWN: [&str; 8] = [
    "host",
    "cookie",
    "authorization",
    "upgrade",
    "forwarded",
    "origin",
    "range",
    "content-length",
];

/// Starts a backend with this name, and returns its port. Its threads end with the test.
pub fn start_tcp(name: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let name = name.clone();
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            let Ok(reader) = stream.try_clone() else { continue };
            thread::spawn(move || drop(serve(&name, reader, stream)));
        }
    });
    port
}

/// Starts a backend on a Unix socket.
pub fn start_unix(name: &str, path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    let name = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let name = name.clone();
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            let Ok(reader) = stream.try_clone() else { continue };
            thread::spawn(move || drop(serve(&name, reader, stream)));
        }
    });
}

fn serve(name: &str, reader: impl Read, mut writer: impl Write) -> std::io::Result<()> {
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let request = line.trim_end().to_owned();
        let mut fields = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((field, value)) = line.trim_end().split_once(':') else { break };
            fields.push((field.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let of = |name: &str| {
            fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
        };
        let length = of("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (head, body) = answer(name, &request, &fields, of("cookie").unwrap_or_default());
        writer.write_all(head.as_bytes())?;
        if !request.starts_with("HEAD ") {
            writer.write_all(body.as_bytes())?;
        }
        writer.flush()?;
        if of("connection") == Some("close") || head.starts_with("HTTP/1.1 101") {
            return Ok(());
        }
    }
}

/// Returns head and body of the answer. A query can ask for another status (`status=503`) and for
/// reply fields (`field=NAME:VALUE`).
fn answer(
    name: &str,
    request: &str,
    fields: &[(String, String)],
    cookies: &str,
) -> (String, String) {
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let (mut status, mut extra) = ("200".to_owned(), format!("X-Backend: {name}\r\n"));
    for (key, value) in query.split('&').filter_map(|part| part.split_once('=')) {
        match key {
            "status" => status = value.to_owned(),
            "field" => extra += &format!("{}\r\n", value.replacen(':', ": ", 1).replace('+', " ")),
            _ => {}
        }
    }
    if target.starts_with("/oauth2/auth") {
        if cookies.contains("_oauth2_proxy=valid") {
            status = "202".into();
            extra += "X-Auth-Request-User: ann\r\nX-Auth-Request-Email: ann@example.org\r\n";
        } else {
            status = "401".into();
        }
    }
    if fields.iter().any(|(field, value)| field == "upgrade" && value == "websocket") {
        let head = format!(
            "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n{extra}\r\n"
        );
        return (head, String::new());
    }
    let mut lines: Vec<String> = fields
        .iter()
        .filter(|(field, _)| SHOWN.contains(&field.as_str()) || field.starts_with("x-"))
        .map(|(field, value)| format!("{field}: {value}"))
        .collect();
    lines.sort();
    let body = format!("request: {method} {target}\nbackend: {name}\n{}\n", lines.join("\n"));
    let head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{extra}\r\n",
        body.len()
    );
    (head, body)
}
