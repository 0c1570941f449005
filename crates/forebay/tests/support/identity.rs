//! Replies that show their owner: each repeats the id of its request, so that a mixed, cut-off or
//! duplicated reply is found.

use std::net::SocketAddr;

use forebay_testkit::http::{Client, Reply};
use forebay_testkit::stream::Address;

/// Number of times that a reply repeats the id.
const REPEATS: usize = 3000;

/// A PHP script that pauses in the middle, so that a test can kill it there.
pub const PHP: &str = "<?php\nheader('Content-Type: text/plain');\n\
    for ($i = 0; $i < 3000; $i++) {\n\
      if ($i == 1500) { flush(); usleep(1000); }\n\
      echo $_GET['id'], ';';\n}\n";

/// The same script in Perl, for CGI, fcgiwrap and persistent workers.
pub const PERL: &str = "#!/usr/bin/perl\nmy ($id) = $ENV{QUERY_STRING} =~ /id=(\\w+)/;\n\
    $| = 1;\nprint \"Content-Type: text/plain\\n\\n\", \"$id;\" x 1500;\n\
    select undef, undef, undef, 0.001;\nprint \"$id;\" x 1500;\n";

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The client's own complete reply.
    Whole,
    /// An error page with this status.
    Error(u16),
    /// A connection that ended visibly in the middle of the reply.
    Cut,
}

/// A client that sends many requests. It opens a new connection if the last one has ended.
pub struct Asker {
    address: Address,
    client: Option<Client>,
    name: usize,
    asked: usize,
}

impl Asker {
    /// Returns the client with the number `name`.
    pub fn new(address: SocketAddr, name: usize) -> Self {
        Self { address: address.into(), client: None, name, asked: 0 }
    }

    /// Requests `path?id=...`.
    ///
    /// # Panics
    /// Panics if there is no reply, or if the reply belongs to another request or to none.
    pub fn ask(&mut self, path: &str) -> Outcome {
        self.ask_pipelined(&[path])[0]
    }

    /// Sends several requests at the same time over one connection. If it is cut off, the remaining
    /// requests count as cut off, too.
    pub fn ask_pipelined(&mut self, paths: &[&str]) -> Vec<Outcome> {
        let ids: Vec<_> = paths.iter().map(|_| self.next_id()).collect();
        let requests = paths.iter().zip(&ids);
        let requests: String = requests
            .map(|(path, id)| format!("GET {path}?id={id} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .collect();
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::try_connect(&self.address).expect("the gateway accepts"),
        };
        if client.try_send(requests.as_bytes()).is_err() {
            return vec![Outcome::Cut; paths.len()];
        }
        let mut outcomes = Vec::new();
        for id in &ids {
            let outcome = match client.try_reply() {
                Ok(reply) => judge(&reply, id),
                Err(error) => {
                    assert!(!error.to_string().contains("in time"), "{error}");
                    Outcome::Cut
                }
            };
            outcomes.push(outcome);
            if outcome == Outcome::Cut {
                outcomes.resize(ids.len(), Outcome::Cut);
                return outcomes;
            }
        }
        self.client = Some(client);
        outcomes
    }

    fn next_id(&mut self) -> String {
        self.asked += 1;
        format!("c{:03}r{:05}", self.name, self.asked)
    }
}

/// Returns the body of the reply to the request with this id.
pub fn body(id: &str) -> String {
    format!("{id};").repeat(REPEATS)
}

fn judge(reply: &Reply, id: &str) -> Outcome {
    if reply.status == 200 {
        assert!(
            reply.body == body(id).as_bytes(),
            "{id} got {} bytes: {:?}",
            reply.body.len(),
            String::from_utf8_lossy(&reply.body[..reply.body.len().min(200)])
        );
        return Outcome::Whole;
    }
    let status = reply.status;
    assert!(matches!(status, 502..=504), "{id} got {status}");
    assert!(reply.text().contains(&format!("<h1>{status} ")), "{id} got {}", reply.text());
    Outcome::Error(status)
}
