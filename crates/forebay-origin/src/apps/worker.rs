//! Applications whose worker processes Forebay runs: a request goes to an idle worker.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_conf::{self as conf, AppKind, Level};
use forebay_net::fault::Fault;
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::spool::Spooled;
use forebay_upstream::mount::Mount;
use forebay_upstream::output::Output;
use forebay_upstream::reply_pump::ReplyPump;
use forebay_upstream::script::{Script, Scripts, scripts_of};
use forebay_upstream::script_reply::{OutputLimit, ScriptReply};
use forebay_upstream::{Attempts, BodyAtHand};
use forebay_wire::cgi::{self, Block, Sink};
use forebay_workers::{App, Body, EndKind, Lease, LeaseEvent, PROOF, WorkerFault};

use crate::apps::definition::env_of_requests;
use crate::apps::fault::{unavailable, worker_fault};
use crate::apps::takeover;
use crate::apps::turns::Turns;
use crate::scripts::cgi::no_script;

/// Maximum number of workers to try for one request, because a worker may die before it reads the
/// request.
const OFFERS: usize = 3;
/// Status that the language host reports for a script that a signal ended.
const KILLED: u16 = 502;

/// Target of an application's requests.
pub enum Target {
    /// The script that the path names.
    Scripts(Scripts),
    /// A single application for all paths.
    Mount(Mount),
}

impl Target {
    /// Returns the target of the requests of `route` to `app`.
    pub fn of(app: &conf::App, route: &conf::Route) -> Self {
        let mount = |file: &Path, takes_over| Mount {
            dir: app.dir.clone(),
            file: file.to_owned(),
            takes_over,
            point: app.mount.clone(),
        };
        match &app.kind {
            AppKind::CgiBin { dir, .. }
            | AppKind::PerlCgi { dir, .. }
            | AppKind::PythonCgi { dir, .. } => Self::Scripts(scripts_of(dir, route)),
            AppKind::Psgi { file } => Self::Mount(mount(file, true)),
            AppKind::ModPerl { root, .. } => {
                Self::Mount(Mount { dir: root.clone(), ..mount(root, false) })
            }
            _ => Self::Mount(mount(&app.dir, false)),
        }
    }
}

/// Origin of the requests to an application with workers. Each thread has one.
pub struct WorkerApp {
    thread: Rc<Thread>,
    app: App,
    turns: Turns,
    target: Target,
    /// Maximum number of bytes in one reply.
    max_output: u64,
    /// Variables from the configuration that replace those of requests.
    instead: BTreeMap<String, String>,
}

impl WorkerApp {
    /// Creates the origin for requests to `target` on the workers of `app`, configured by `plan`.
    pub fn new(thread: Rc<Thread>, app: App, target: Target, plan: &conf::App) -> Self {
        let (max_output, instead) = (plan.max_output, env_of_requests(plan));
        let turns = Turns::new(&plan.fair);
        Self { thread, app, turns, target, max_output, instead }
    }

    /// Creates the origin for the scripts in `dir`, configured by `plan`.
    pub fn of_scripts(thread: Rc<Thread>, app: App, dir: PathBuf, plan: &conf::App) -> Self {
        Self::new(thread, app, Target::Scripts(Scripts::new(dir)), plan)
    }

    /// Runs `script` on a worker.
    pub async fn run_script(&self, exchange: &mut Exchange, script: &Script) -> Result<(), Fault> {
        self.run(exchange, Some(script)).await
    }

    async fn run(&self, exchange: &mut Exchange, script: Option<&Script>) -> Result<(), Fault> {
        let takes_over = matches!(&self.target, Target::Mount(mount) if mount.takes_over)
            && takeover::is_possible(exchange);
        let body = exchange.body.spool().await?;
        let block = self.block(exchange, script, body.length(), takes_over)?;
        let mut attempts = Attempts::default();
        for _ in 0..OFFERS {
            let run = Run { script, block: &block, body: &body, takes_over };
            match self.offer(exchange, run).await {
                Ok(()) => return Ok(()),
                Err(fault) => attempts.failed(fault, exchange, BodyAtHand::Whole)?,
            }
        }
        Err(attempts.last().unwrap_or_else(|| Fault::us(500, "no worker was offered the request")))
    }

    /// Returns the variables of the request, encoded for a worker.
    fn block(
        &self,
        exchange: &Exchange,
        script: Option<&Script>,
        length: Option<u64>,
        takes_over: bool,
    ) -> Result<Vec<u8>, Fault> {
        let parts;
        let request = match (&self.target, script) {
            (Target::Scripts(scripts), Some(script)) => {
                script.describe(&exchange.request, scripts.dir(), length)
            }
            (Target::Mount(mount), _) => {
                parts = mount.parts(&exchange.request);
                mount.describe(&exchange.request, &parts, length)
            }
            (Target::Scripts(_), None) => return Err(Fault::us(500, "no script was looked up")),
        };
        let mut block = Block(Vec::with_capacity(2048));
        if let Some(proof) = self.app.proof_of(script.map(|script| &*script.file)) {
            block.variable(PROOF.as_bytes(), proof.as_bytes());
        }
        variables(&request, &self.instead, &mut block);
        // The question of `perl_gate`.
        for (name, value) in exchange.request.params.iter().flat_map(|params| params.iter()) {
            block.variable(name.as_bytes(), value.as_bytes());
        }
        if takes_over {
            block.variable(takeover::VARIABLE, b"1");
        }
        Ok(block.0)
    }

    /// Runs a request on one worker.
    async fn offer(&self, exchange: &mut Exchange, run: Run<'_>) -> Result<(), Fault> {
        exchange.enter(Step::Connect);
        let body = match run.body {
            Spooled::Empty => Body::Empty,
            Spooled::Memory(memory) => Body::Bytes(memory),
            Spooled::File(file, length) => Body::File(file, *length),
        };
        let client = || self.turns.client(&exchange.request);
        let lease = self.app.checkout_in_turn(run.block, body, client).await;
        let mut lease = lease.map_err(unavailable)?;
        exchange.enter(Step::Origin);
        lease.send(run.block, body).await.map_err(worker_fault)?;
        let limit = OutputLimit::new(self.max_output, Fault::app, &self.thread);
        let reading = match run.script {
            Some(script) => Output::of(script, &exchange.request, limit),
            None => Output::Parsed(ScriptReply::new(limit)),
        };
        self.relay_reply(
            exchange,
            LeaseGuard(Some(lease), self.thread.clone()),
            reading,
            run.takes_over,
        )
        .await
    }

    /// Sends the worker's reply to the client. If the application takes over the client's
    /// connection, opens a tunnel instead.
    async fn relay_reply(
        &self,
        exchange: &mut Exchange,
        mut running: LeaseGuard,
        reading: Output,
        mut may_take_over: bool,
    ) -> Result<(), Fault> {
        let lease = running.0.as_mut().expect("it was put in");
        let mut output = Vec::with_capacity(16 * 1024);
        let mut pump = ReplyPump::new(reading, &mut exchange.reply);
        loop {
            let before = output.len();
            let event = pump.next(async || match output.len() - before {
                0 => lease.read(&mut output).await,
                // `next` may cancel a read that has already appended output, and then call this
                // closure again. The second call returns the output of the first one.
                more => Ok(LeaseEvent::Output(more)),
            });
            let event = match event.await? {
                Ok(event) => event,
                // The worker process has ended during the script, for example by a call of `exit`.
                // The client gets the output so far.
                Err(fault @ WorkerFault::Died { .. }) => {
                    return pump.cut_off(worker_fault(fault)).await;
                }
                Err(fault) => return Err(worker_fault(fault)),
            };
            if may_take_over {
                match (takeover::has_begun(&output), &event) {
                    (Some(true), LeaseEvent::Output(_)) => {
                        let lease = running.0.take().expect("only this and drop take it");
                        return takeover::complete(lease, output, exchange, &self.thread).await;
                    }
                    (None, LeaseEvent::Output(_)) => continue,
                    _ => may_take_over = false,
                }
            }
            // At the end of the script, this also sends output that was too short for
            // `has_begun`.
            if !output.is_empty() {
                pump.feed(&output).await?;
                output.clear();
            }
            if let LeaseEvent::End(kind) = event {
                return finish(kind, pump).await;
            }
        }
    }
}

/// Passes the variables of `request` to `sink`, except those that `instead` replaces.
fn variables(request: &cgi::Request<'_>, instead: &BTreeMap<String, String>, sink: &mut impl Sink) {
    if instead.is_empty() {
        return cgi::variables(request, sink);
    }
    cgi::variables(request, &mut Instead { sink: &mut *sink, of: instead });
    for (name, value) in instead {
        sink.variable(name.as_bytes(), value.as_bytes());
    }
}

/// Sink that drops the variables that `instead` replaces. Otherwise names would repeat, which
/// language hosts handle more slowly.
struct Instead<'a, S> {
    sink: &'a mut S,
    of: &'a BTreeMap<String, String>,
}

impl<S: Sink> Sink for Instead<'_, S> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        let is_replaced = str::from_utf8(name).is_ok_and(|name| self.of.contains_key(name));
        if !is_replaced {
            self.sink.variable(name, value);
        }
    }
}

/// Ends the reply of a script. The client gets the output from before a failure, as with CGI. The
/// server logs the failure.
async fn finish(kind: EndKind, mut pump: ReplyPump<'_>) -> Result<(), Fault> {
    match kind {
        EndKind::Ok => pump.finish().await,
        EndKind::Status(KILLED) => {
            pump.cut_off(Fault::app(KILLED, "the script was ended by a signal")).await
        }
        EndKind::Status(_) if pump.output().has_head() => pump.finish().await,
        EndKind::Status(status) => Err(Fault::app(status, "the script failed")),
        EndKind::Aborted => {
            Err(Fault::app(500, "the application failed in the middle of its reply"))
        }
    }
}

/// Input of a worker for one request.
struct Run<'a> {
    /// The script, if paths name scripts.
    script: Option<&'a Script>,
    /// The variables.
    block: &'a [u8],
    body: &'a Spooled,
    /// True if the application may take the connection over.
    takes_over: bool,
}

impl Origin for WorkerApp {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || async move {
            match &self.target {
                Target::Scripts(scripts) => {
                    let found = scripts.find(exchange.request.rest(), self.thread.second());
                    let script = found.map_err(no_script)?;
                    self.run(exchange, Some(&script)).await
                }
                Target::Mount(_) => self.run(exchange, None).await,
            }
        })
    }
}

/// The lease of a worker that runs a request. If the client leaves, and the route does not let the
/// request run on, the worker is stopped.
struct LeaseGuard(Option<Lease>, Rc<Thread>);

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take()
            && let Some(pid) = lease.pid()
        {
            self.1.log_limited_with(Level::Info, || {
                format!(
                    "worker {pid} is stopped in its request, because nobody waits for the reply"
                )
            });
            tokio::task::spawn_local(lease.abandon());
        }
    }
}
