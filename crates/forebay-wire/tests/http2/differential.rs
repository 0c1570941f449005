//! Tests with the `h2` crate as the peer, as client and as server, over a pipe in memory. Requests,
//! sizes, windows and pieces are random, but equal in each run.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use fastrand::Rng;
use forebay_wire::fields::Fields;
use forebay_wire::http2::{Cause, Config, Connection, ErrorCode, Event, Priority, RequestPseudo};
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// Our side of a test, which handles events. [`pump`] drives its connection.
trait Peer {
    fn event(&mut self, connection: &mut Connection, event: Event, input: &[u8]);
    /// Sends as much as possible. Returns false when everything is done.
    fn turn(&mut self, connection: &mut Connection) -> bool;
}

/// Moves bytes in random pieces until the peer closes the pipe or our side is done.
async fn pump(io: DuplexStream, mut connection: Connection, mut peer: impl Peer, mut random: Rng) {
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut input = Vec::new();
    let mut buffer = vec![0; 40_000];
    loop {
        let goes_on = peer.turn(&mut connection);
        let output = connection.output();
        if !goes_on && output.is_empty() {
            return;
        }
        let piece = output[..output.len().min(random.usize(1..=30_000))].to_vec();
        let room = random.usize(1..=buffer.len());
        tokio::select! {
            read = reader.read(&mut buffer[..room]), if connection.can_receive() => match read {
                Ok(0) | Err(_) => return,
                Ok(len) => input.extend_from_slice(&buffer[..len]),
            },
            written = writer.write(&piece), if !piece.is_empty() => match written {
                Ok(len) => connection.wrote(len),
                Err(_) => return,
            },
        }
        // The connection first gets a part of the received bytes, then all of them.
        for end in [random.usize(..=input.len()), input.len()] {
            let end = end.min(input.len());
            let mut start = 0;
            loop {
                let step = connection.receive(&input[start..end], Instant::now()).unwrap();
                let piece = &input[start..end];
                start += step.consumed;
                let Some(event) = step.event else { break };
                peer.event(&mut connection, event, piece);
            }
            input.drain(..start);
        }
    }
}

/// Body that is being sent. An echo appends received data to it.
#[derive(Default)]
struct Body {
    data: Vec<u8>,
    sent: usize,
    ended: bool,
    trailers: Fields,
}

impl Body {
    /// Continues to send. Returns true when everything is sent.
    fn send(&mut self, connection: &mut Connection, id: u32, consume: bool) -> bool {
        let end = self.ended && self.trailers.is_empty();
        let rest = &self.data[self.sent..];
        if rest.is_empty() && !self.ended {
            return false;
        }
        let taken = connection.send_data(id, rest, end, Instant::now()).unwrap();
        self.sent += taken;
        if consume {
            connection.consume(id, taken, Instant::now());
        }
        let is_whole = self.ended && self.sent == self.data.len();
        if is_whole && !end {
            connection.send_trailers(id, &self.trailers).unwrap();
        }
        is_whole
    }
}

/// Server that returns the fields, the body and the trailers of each request.
#[derive(Default)]
struct Echo {
    bodies: HashMap<u32, Body>,
}

impl Echo {
    fn go_on(&mut self, connection: &mut Connection, id: u32) {
        if let Some(body) = self.bodies.get_mut(&id)
            && body.send(connection, id, true)
        {
            self.bodies.remove(&id);
        }
    }
}

impl Peer for Echo {
    fn event(&mut self, connection: &mut Connection, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, head, end } => {
                let mut fields = Fields::new();
                for field in head.fields.iter().filter(|field| field.name.starts_with(b"x-")) {
                    fields.push(field.name, field.value);
                }
                connection.send_reply(stream, 103, &fields, false).unwrap();
                connection.send_reply(stream, 200, &fields, false).unwrap();
                connection.recycle(head);
                let body = Body { ended: end, ..Body::default() };
                self.bodies.insert(stream, body);
                self.go_on(connection, stream);
            }
            Event::Data { stream, data, end } => {
                let Some(body) = self.bodies.get_mut(&stream) else { return };
                body.data.extend_from_slice(&input[data]);
                body.ended = end;
                self.go_on(connection, stream);
            }
            Event::Trailers { stream, head } => {
                let Some(body) = self.bodies.get_mut(&stream) else { return };
                body.ended = true;
                body.trailers = head.fields.clone();
                connection.recycle(head);
                self.go_on(connection, stream);
            }
            Event::Reset { stream, .. } => drop(self.bodies.remove(&stream)),
            Event::Settings | Event::Goaway { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn turn(&mut self, connection: &mut Connection) -> bool {
        while let Some(id) = connection.poll_writable() {
            self.go_on(connection, id);
        }
        true
    }
}

fn body_of(random: &mut Rng) -> Vec<u8> {
    let len = match random.u8(..4) {
        0 => 0,
        1 => random.usize(..100),
        2 => random.usize(..20_000),
        _ => random.usize(..200_000),
    };
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn fields_of(random: &mut Rng) -> Vec<(String, String)> {
    let text = |random: &mut Rng| {
        let len = if random.u8(..10) == 0 { random.usize(..1_000) } else { random.usize(..30) };
        (0..len).map(|_| random.char('!'..='~')).collect::<String>()
    };
    let count = random.usize(..12);
    (0..count)
        .map(|_| {
            // Some names and values are repeated, so that they enter the HPACK table.
            let name = format!("x-{}", random.u8(..20));
            let value = if random.bool() { "the same value".to_owned() } else { text(random) };
            (name, value)
        })
        .collect()
}

fn config_of(random: &mut Rng) -> Config {
    Config {
        stream_window: random.u32(65_535..300_000),
        connection_window: random.u32(65_535..300_000),
        output: random.usize(1_000..100_000),
        encoder_table: random.usize(..8_000),
        ..Config::default()
    }
}

fn values(map: &HeaderMap) -> Vec<(String, String)> {
    let own = map.iter().filter(|(name, _)| name.as_str().starts_with("x-"));
    let mut list: Vec<_> =
        own.map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned())).collect();
    list.sort();
    list
}

fn sorted(mut list: Vec<(String, String)>) -> Vec<(String, String)> {
    list.sort();
    list
}

/// Sends one request with the `h2` client, and checks the reply.
async fn request_by_h2(mut client: h2::client::SendRequest<Bytes>, mut random: Rng) {
    client = client.ready().await.unwrap();
    let (fields, body) = (fields_of(&mut random), body_of(&mut random));
    let mut request = Request::builder().method("POST").uri("http://example.org/path?query");
    for (name, value) in &fields {
        request = request.header(name, value);
    }
    let trailers = random.bool().then(|| fields_of(&mut random));
    let end = body.is_empty() && trailers.is_none();
    let (reply, mut send) = client.send_request(request.body(()).unwrap(), end).unwrap();
    let mut rest = &body[..];
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(random.usize(1..50_000)));
        rest = behind;
        let end = rest.is_empty() && trailers.is_none();
        send.send_data(Bytes::copy_from_slice(piece), end).unwrap();
        if random.u8(..50) == 0 {
            send.send_reset(h2::Reason::CANCEL);
            return;
        }
        tokio::task::yield_now().await;
    }
    let trailers = trailers.map(|mut list| {
        list.push(("x-last".into(), "1".into()));
        list
    });
    if let Some(list) = &trailers {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        send.send_trailers(map).unwrap();
    }
    let reply = reply.await.unwrap();
    assert_eq!(values(reply.headers()), sorted(fields));
    let mut reply = reply.into_body();
    let mut received = Vec::new();
    while let Some(piece) = reply.data().await {
        let piece = piece.unwrap();
        received.extend_from_slice(&piece);
        reply.flow_control().release_capacity(piece.len()).unwrap();
    }
    assert!(received == body, "{} bytes for {}", received.len(), body.len());
    let back = reply.trailers().await.unwrap();
    assert_eq!(back.map(|map| values(&map)), trailers.map(sorted));
}

fn run(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future);
}

#[test]
fn an_h2_client_gets_back_what_it_sends_to_our_server() {
    for seed in 0..12 {
        run(async move {
            let mut random = Rng::with_seed(seed);
            let (ours, theirs) = duplex(random.usize(1_000..100_000));
            let connection = Connection::server(config_of(&mut random));
            let server = tokio::spawn(pump(ours, connection, Echo::default(), random.fork()));
            let (client, driver) = h2::client::Builder::new()
                .initial_window_size(random.u32(10..100_000))
                .initial_connection_window_size(random.u32(65_535..200_000))
                .max_frame_size(random.u32(16_384..60_000))
                .header_table_size(random.u32(..10_000))
                .handshake::<_, Bytes>(theirs)
                .await
                .unwrap();
            let driver = tokio::spawn(driver);
            let requests: Vec<_> = (0..60)
                .map(|_| tokio::spawn(request_by_h2(client.clone(), random.fork())))
                .collect();
            for request in requests {
                request.await.unwrap();
            }
            drop(client);
            driver.await.unwrap().unwrap();
            server.await.unwrap();
        });
    }
}

/// Client that sends requests to an `h2` server. The server returns their content, which the client
/// checks.
struct Client {
    random: Rng,
    left: usize,
    may_open: bool,
    open: HashMap<u32, Exchange>,
}

struct Exchange {
    body: Body,
    /// Expected fields, then expected trailers.
    expected: [Vec<(String, String)>; 2],
    received: Vec<u8>,
    sent_all: bool,
}

impl Client {
    fn open_one(&mut self, connection: &mut Connection) {
        let list = fields_of(&mut self.random);
        let mut fields = Fields::new();
        for (name, value) in &list {
            // Our encoder accepts names with upper case.
            fields.push(name.to_ascii_uppercase().as_bytes(), value.as_bytes());
        }
        let mut body = Body { data: body_of(&mut self.random), ended: true, ..Body::default() };
        let mut trailers = Vec::new();
        if self.random.bool() {
            trailers.push(("x-last".to_owned(), "1".to_owned()));
            body.trailers.push(b"x-last", b"1");
        }
        let request = RequestPseudo {
            method: b"POST",
            scheme: b"http",
            authority: b"example.org",
            path: b"/path",
            protocol: b"",
        };
        let end = body.data.is_empty() && trailers.is_empty();
        let id = connection.send_request(&request, &fields, end).unwrap();
        let urgency = self.random.u8(..8);
        connection.set_priority(id, Priority { urgency, incremental: self.random.bool() });
        let sent_all = end || body.send(connection, id, false);
        let expected = [sorted(list), trailers];
        self.open.insert(id, Exchange { body, expected, received: Vec::new(), sent_all });
    }

    fn finish(&mut self, id: u32) {
        let exchange = self.open.remove(&id).unwrap();
        assert!(exchange.sent_all && exchange.received == exchange.body.data);
    }
}

fn list_of(fields: &Fields) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let own = fields.iter().filter(|field| field.name.starts_with(b"x-"));
    sorted(own.map(|field| (text(field.name), text(field.value))).collect())
}

impl Peer for Client {
    fn event(&mut self, connection: &mut Connection, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, head, end } => {
                let exchange = &self.open[&stream];
                assert_eq!(head.status, 200);
                assert_eq!(list_of(&head.fields), exchange.expected[0]);
                connection.recycle(head);
                if end {
                    self.finish(stream);
                }
            }
            Event::Data { stream, data, end } => {
                let len = data.len();
                let Some(exchange) = self.open.get_mut(&stream) else { return };
                exchange.received.extend_from_slice(&input[data]);
                if self.random.u8(..200) == 0 {
                    connection.reset(stream, ErrorCode::CANCEL, Instant::now());
                    self.open.remove(&stream);
                    return;
                }
                if end {
                    assert!(exchange.expected[1].is_empty());
                    self.finish(stream);
                }
                connection.consume(stream, len, Instant::now());
            }
            Event::Trailers { stream, head } => {
                assert_eq!(list_of(&head.fields), self.open[&stream].expected[1]);
                connection.recycle(head);
                self.finish(stream);
            }
            Event::Reset { stream, cause: Cause::Peer(code) } => panic!("{stream}: {code:?}"),
            Event::Settings => self.may_open = true,
            other => panic!("{other:?}"),
        }
    }

    fn turn(&mut self, connection: &mut Connection) -> bool {
        // Before our side has the server's settings, it could open streams that the server must
        // refuse. h2 0.4 treats DATA on such streams as a protocol error.
        while self.may_open
            && self.left > 0
            && connection.available() > 0
            && (self.open.is_empty() || self.random.u8(..4) > 0)
        {
            self.left -= 1;
            self.open_one(connection);
        }
        while let Some(id) = connection.poll_writable() {
            if let Some(exchange) = self.open.get_mut(&id) {
                exchange.sent_all = exchange.body.send(connection, id, false);
            }
        }
        self.left > 0 || !self.open.is_empty()
    }
}

/// Returns the content of one request with the `h2` server.
async fn reply_by_h2(
    request: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    mut random: Rng,
) -> Result<(), h2::Error> {
    let (parts, mut body) = request.into_parts();
    let mut reply = Response::builder();
    for (name, value) in &parts.headers {
        reply = reply.header(name, value);
    }
    let is_empty = body.is_end_stream();
    let mut send = respond.send_response(reply.body(()).unwrap(), is_empty)?;
    if is_empty {
        return Ok(());
    }
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        let cut = random.usize(..=piece.len());
        send.send_data(piece.slice(..cut), false)?;
        tokio::task::yield_now().await;
        send.send_data(piece.slice(cut..), false)?;
    }
    match body.trailers().await? {
        Some(trailers) => send.send_trailers(trailers),
        None => send.send_data(Bytes::new(), true),
    }
}

#[test]
fn our_client_gets_back_what_it_sends_to_an_h2_server() {
    for seed in 100..112 {
        run(async move {
            let mut random = Rng::with_seed(seed);
            let (ours, theirs) = duplex(random.usize(1_000..100_000));
            let connection = Connection::client(config_of(&mut random));
            let (left, open) = (60, HashMap::new());
            let client = Client { random: random.fork(), left, may_open: false, open };
            let client = tokio::spawn(pump(ours, connection, client, random.fork()));
            let mut server = h2::server::Builder::new()
                .initial_window_size(random.u32(10..100_000))
                .initial_connection_window_size(random.u32(65_535..200_000))
                .max_concurrent_streams(random.u32(1..40))
                .max_frame_size(random.u32(16_384..60_000))
                .header_table_size(random.u32(..10_000))
                .handshake::<_, Bytes>(theirs)
                .await
                .unwrap();
            let mut replies = Vec::new();
            // Our side closes the connection when it is done, possibly before the server has
            // written everything.
            while let Some(Ok((request, respond))) = server.accept().await {
                replies.push(tokio::spawn(reply_by_h2(request, respond, random.fork())));
            }
            client.await.unwrap();
            for reply in replies {
                // A stream that our side has cancelled ends with an error.
                reply.await.unwrap().ok();
            }
        });
    }
}
