//! A proxy that lets clients of HTTP/1.1 use HTTP/3, for programs without HTTP/3.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use forebay_testkit::tls::Authority;
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::http3::{Client, Reply, reply_to, run};

type Requests = SendRequest<OpenStreams, Bytes>;

/// A running proxy.
pub struct Bridge {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Bridge {
    /// Passes requests to the HTTP/3 server at `server`.
    pub fn start(server: SocketAddr, authority: Arc<Authority>) -> Self {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || {
            run(async {
                let client = Client::connect(server, &authority).await;
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = accept(listener, &client.requests) => {}
                    _ = ended => {}
                }
            });
        });
        Self { address: receiver.recv().unwrap(), end, thread }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn stop(self) {
        self.end.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

async fn accept(listener: TcpListener, requests: &Requests) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(serve(stream, requests.clone()));
    }
}

/// Passes the requests of one connection on, until it ends.
async fn serve(mut stream: TcpStream, mut requests: Requests) {
    let mut bytes = Vec::new();
    loop {
        while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let rest = bytes.split_off(end + 4);
        let request = BridgedRequest::parse(&head);
        bytes = rest;
        while bytes.len() < request.length {
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "{head}");
        }
        let rest = bytes.split_off(request.length);
        let reply = send(&mut requests, &request, std::mem::replace(&mut bytes, rest)).await;
        if stream.write_all(&encode(&reply, request.is_head)).await.is_err() {
            return;
        }
    }
}

/// The head of a request, in the form for HTTP/3.
struct BridgedRequest {
    head: Request<()>,
    length: usize,
    is_head: bool,
}

impl BridgedRequest {
    fn parse(head: &str) -> Self {
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap().split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let fields: Vec<_> = lines.map(|line| line.split_once(": ").expect("a field")).collect();
        let find = |wanted: &str| fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let (_, host) = find("host").expect("a host");
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{host}{target}"))
            .header("x-forwarded-proto", "http");
        for &(name, value) in &fields {
            if !["host", "connection", "keep-alive"].contains(&&*name.to_ascii_lowercase()) {
                request = request.header(name, value);
            }
        }
        let length = find("content-length").map_or(0, |(_, value)| value.parse().unwrap());
        Self { head: request.body(()).unwrap(), length, is_head: method == "HEAD" }
    }
}

async fn send(requests: &mut Requests, request: &BridgedRequest, body: Vec<u8>) -> Reply {
    let mut exchange = requests.send_request(request.head.clone()).await.unwrap();
    if !body.is_empty() {
        exchange.send_data(Bytes::from(body)).await.unwrap();
    }
    exchange.finish().await.unwrap();
    reply_to(&mut exchange).await
}

fn encode(reply: &Reply, is_head: bool) -> Vec<u8> {
    let status = reply.head.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let mut out = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in reply.head.headers() {
        if name != "content-length" {
            out.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
    }
    if !is_head && !matches!(status.as_u16(), 204 | 304) {
        out.extend(format!("Content-Length: {}\r\n", reply.body.len()).bytes());
    }
    out.extend(b"\r\n");
    out.extend(&reply.body);
    out
}
