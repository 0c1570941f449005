//! Passes output of scripts and applications on to the client, whoever runs them: as it comes, and
//! what is held back when nothing has come for a moment. A client that takes nothing holds the
//! reading up.

use forebay_engine::{Fault, Reply};

use crate::output::Output;
use crate::script_reply::PAUSE;

/// One reply on its way from where it is read to the client.
pub struct ReplyPump<'a> {
    output: Output,
    reply: &'a mut Reply,
}

impl<'a> ReplyPump<'a> {
    /// Makes `reply` of `output`, which is read from now on.
    pub fn new(output: Output, reply: &'a mut Reply) -> Self {
        Self { output, reply }
    }

    /// What `read` brings. Where that takes a moment, what has come so far goes to the client first;
    /// `read` is given up meanwhile and called again, so it must lose nothing.
    pub async fn next<T>(&mut self, mut read: impl AsyncFnMut() -> T) -> Result<T, Fault> {
        if self.output.has_output() {
            tokio::select! {
                biased;
                brought = read() => return Ok(brought),
                () = tokio::time::sleep(PAUSE) => {}
            }
            self.output.flush(self.reply).await?;
        }
        Ok(read().await)
    }

    /// Takes output.
    pub async fn feed(&mut self, output: &[u8]) -> Result<(), Fault> {
        self.output.feed(output, self.reply).await
    }

    /// Nothing comes for a while: what has come goes to the client.
    pub async fn flush(&mut self) -> Result<(), Fault> {
        if self.output.has_output() { self.output.flush(self.reply).await } else { Ok(()) }
    }

    /// All has come.
    pub async fn finish(&mut self) -> Result<(), Fault> {
        self.output.finish(self.reply).await
    }

    /// The output so far.
    pub fn output(&self) -> &Output {
        &self.output
    }
}
