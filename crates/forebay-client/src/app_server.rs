//! Client of SCGI and uwsgi, in the role of a web server. Each request has its own connection. The
//! reply ends when the connection closes, unless it is an HTTP reply that states its length.
//!
//! With either protocol, some applications send an HTTP reply and others a CGI reply. The first
//! bytes of a reply show its form.

use std::sync::Arc;

use crate::http1::ReplyReader;
use crate::script::ScriptReader;
use crate::{Answer, HttpRequest, Malformed, Receipt, Session, Sink};

/// Connection to an SCGI or uwsgi application.
#[derive(Debug)]
pub struct AppServer<S> {
    request: Arc<[u8]>,
    written: usize,
    form: Form,
    http: ReplyReader,
    script: ScriptReader,
    sink: S,
}

/// Form of a reply: an HTTP reply or a CGI reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The bytes received so far fit both forms.
    Unknown,
    Http,
    Script,
}

/// First bytes of every HTTP reply.
const HTTP: &[u8] = b"HTTP/";

impl<S: Sink> AppServer<S> {
    /// Creates a session that sends `request` on each connection. [`crate::scgi_request`] and
    /// [`crate::uwsgi_request`] return such requests.
    pub fn new(request: HttpRequest, sink: S) -> Self {
        let (http, script) = (ReplyReader::new(request.to_head), ScriptReader::default());
        let request = request.bytes;
        Self { request, written: 0, form: Form::Unknown, http, script, sink }
    }
}

impl<S: Sink> Session for AppServer<S> {
    type Sink = S;
    type Request = HttpRequest;

    fn set_request(&mut self, request: &HttpRequest) {
        self.request = request.bytes.clone();
        self.http.set_to_head(request.to_head);
    }

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

    /// Decodes the reply. `HTTP/` begins an HTTP reply. Other bytes begin a CGI reply, which ends
    /// when the connection closes.
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
