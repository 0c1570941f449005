//! SCGI and uwsgi, the web server's side: a connection for each request, whose end is that of the
//! reply. Servers answer as scripts do or with HTTP, whatever the protocol; the first bytes show it.

use std::sync::Arc;

use crate::http1::ReplyReader;
use crate::script::ScriptReader;
use crate::{Answer, Malformed, Receipt, Session, Sink};

/// A connection to an application of SCGI or uwsgi.
#[derive(Debug)]
pub struct AppServer<S> {
    request: Arc<[u8]>,
    written: usize,
    form: Form,
    http: ReplyReader,
    script: ScriptReader,
    sink: S,
}

/// What a reply looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Too little of it has come.
    Unknown,
    Http,
    Script,
}

/// What replies of HTTP begin with.
const HTTP: &[u8] = b"HTTP/";

impl<S: Sink> AppServer<S> {
    /// Connections that each carry `request`, as [`crate::scgi_request`] or [`crate::uwsgi_request`]
    /// makes it; `to_head` where its method is HEAD.
    pub fn new(request: Arc<[u8]>, to_head: bool, sink: S) -> Self {
        let (http, script) = (ReplyReader::new(to_head), ScriptReader::default());
        Self { request, written: 0, form: Form::Unknown, http, script, sink }
    }
}

impl<S: Sink> Session for AppServer<S> {
    type Sink = S;

    fn start(&mut self) {
        self.written = 0;
        self.form = Form::Unknown;
        self.http.begin();
        self.script.begin();
        self.sink.begin();
    }

    fn output(&self) -> &[u8] {
        &self.request[self.written..]
    }

    fn wrote(&mut self, n: usize) {
        self.written += n;
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed> {
        if self.form == Form::Unknown {
            self.form = match bytes {
                _ if bytes.starts_with(HTTP) => Form::Http,
                _ if HTTP.starts_with(bytes) => return Ok(Receipt { consumed: 0, answer: None }),
                _ => Form::Script,
            };
        }
        if self.form == Form::Script {
            self.script.read(bytes, &mut self.sink)?;
            return Ok(Receipt { consumed: bytes.len(), answer: None });
        }
        let (consumed, is_complete) = self.http.read(bytes, &mut self.sink)?;
        let answer = Answer { status: self.http.status(), reusable: false };
        Ok(Receipt { consumed, answer: is_complete.then_some(answer) })
    }

    fn closed(&mut self) -> Option<Answer> {
        let status = match self.form {
            Form::Unknown => None,
            Form::Http => self.http.ends_at_close().then(|| self.http.status()),
            Form::Script => self.script.end().ok(),
        };
        status.map(|status| Answer { status, reusable: false })
    }

    fn status(&self) -> u16 {
        match self.form {
            Form::Unknown => 0,
            Form::Http => self.http.status(),
            Form::Script => self.script.status(),
        }
    }

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
}
