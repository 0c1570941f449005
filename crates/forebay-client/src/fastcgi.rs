//! FastCGI client, in the role of a web server. A connection carries one request at a time, always
//! with request ID 1.

use std::sync::Arc;

use forebay_wire::fastcgi::{Decoder, ProtocolStatus, RecordEvent};

use crate::request::ID;
use crate::script::ScriptReader;
use crate::{Answer, Malformed, Receipt, Session, Sink};

/// Connection to a FastCGI application.
#[derive(Debug)]
pub struct FastcgiClient<S> {
    request: Arc<[u8]>,
    written: usize,
    decoder: Decoder,
    script: ScriptReader,
    sink: S,
}

impl<S: Sink> FastcgiClient<S> {
    /// Creates a session that sends `request` in each exchange. [`crate::fastcgi_request`] returns
    /// such requests.
    pub fn new(request: Arc<[u8]>, sink: S) -> Self {
        let (decoder, script) = (Decoder::new(ID), ScriptReader::default());
        Self { request, written: 0, decoder, script, sink }
    }

    /// Returns true if the request asks the application to keep the connection open. Its first
    /// record is `FCGI_BEGIN_REQUEST`, with the flags after a header of 8 bytes and the role.
    fn keeps_connection(&self) -> bool {
        self.request.get(10).is_some_and(|flags| flags & 1 == 1)
    }

    fn answer(&self, status: ProtocolStatus) -> Result<Answer, Malformed> {
        match status {
            ProtocolStatus::Complete => {
                let status = self.script.end().map_err(Malformed::Script)?;
                Ok(Answer { status, reusable: self.keeps_connection() })
            }
            ProtocolStatus::Overloaded => Err(Malformed::Refused("is overloaded")),
            ProtocolStatus::CantMultiplex => {
                Err(Malformed::Refused("took the only request on the connection for a second one"))
            }
            ProtocolStatus::Refused => {
                Err(Malformed::Refused("does not support the responder role"))
            }
        }
    }
}

impl<S: Sink> Session for FastcgiClient<S> {
    type Sink = S;
    type Request = Arc<[u8]>;

    fn set_request(&mut self, request: &Arc<[u8]>) {
        self.request = request.clone();
    }

    fn start(&mut self) {
        self.written = 0;
        self.decoder = Decoder::new(ID);
        self.script.begin();
        self.sink.begin();
    }

    fn output(&self) -> &[u8] {
        &self.request[self.written..]
    }

    fn wrote(&mut self, n: usize) {
        self.written += n;
    }

    /// Decodes records until the bytes end, or until the reply and all of its padding have been
    /// read.
    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed> {
        let mut at = 0;
        let mut answer = None;
        loop {
            let step = self.decoder.decode(&bytes[at..]).map_err(Malformed::Record)?;
            match step.event {
                Some(RecordEvent::Stdout(range)) => {
                    let output = &bytes[at..][range];
                    self.script.read(output, &mut self.sink)?;
                }
                Some(RecordEvent::End { status, .. }) => answer = Some(self.answer(status)?),
                Some(RecordEvent::Stderr(_) | RecordEvent::Values(_)) => {}
                None => return Ok(Receipt { consumed: at + step.consumed, answer }),
            }
            at += step.consumed;
            if answer.is_some() && self.decoder.is_done() {
                return Ok(Receipt { consumed: at, answer });
            }
        }
    }

    fn closed(&mut self) -> Option<Answer> {
        None
    }

    fn status(&self) -> u16 {
        self.script.status()
    }

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
}
