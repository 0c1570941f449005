//! Runs the command of `[load.client]` and finds its number in the output.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::experiment::{Client, Plan, Printed, Values, in_words, missing};
use crate::keeper::{ENDED_WELL, Keeper, Launch, OUTPUT_FILE};
use crate::trial::{Halt, READY_INTERVAL, RunError, Runner, broken};
use forebay_load::{Outcome, Requests};

/// Number of bytes at the end of the output that are searched for the result.
const READ_BYTES: u64 = 1024 * 1024;
/// Number of output lines that an error message quotes.
const QUOTED_LINES: usize = 3;

/// Arguments of one run of a client.
pub(crate) struct Task<'a> {
    pub client: &'a Client,
    pub values: &'a Values,
    pub url: &'a str,
    pub duration: Duration,
    pub connections: u32,
    /// Seed for the command, equal for all configurations of a round.
    pub seed: u32,
}

/// Results of one run of a client.
pub(crate) struct Ran {
    pub printed: Printed,
    /// Amount of work, found with `count` of `[load.client]`; 0 if that key is missing.
    pub count: u64,
    pub took: Duration,
}

impl Ran {
    /// Converts the result of a client command to the form of the built-in load generator's
    /// results. Only the number of requests is known, not failures or latencies.
    pub fn outcome(&self, task: &Task<'_>) -> Outcome {
        Outcome {
            url: task.url.to_owned(),
            connections: task.connections as usize,
            threads: 0,
            duration: self.took,
            requests: Requests { sent: self.count, completed: self.count, ..Requests::default() },
            ..Outcome::default()
        }
    }
}

/// Checks that this machine has everything that the client of `plan` requires.
///
/// # Errors
/// Returns [`Halt::CannotStart`], which names the missing requirements.
pub fn check(plan: &Plan) -> Result<(), Halt> {
    let missing = plan.load.client.as_ref().map(|client| missing(&client.requires));
    match missing.filter(|missing| !missing.is_empty()) {
        Some(missing) => Err(Halt::CannotStart {
            configuration: "the client of [load]".to_owned(),
            reason: in_words(&missing),
            output: Vec::new(),
        }),
        None => Ok(()),
    }
}

impl Task<'_> {
    fn fill(&self, text: &str) -> String {
        let filled = self.values.fill(text);
        self.placeholders()
            .iter()
            .fold(filled, |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    fn placeholders(&self) -> [(&'static str, String); 4] {
        [
            ("url", self.url.to_owned()),
            ("duration", self.duration.as_secs_f64().to_string()),
            ("connections", self.connections.to_string()),
            ("seed", self.seed.to_string()),
        ]
    }

    fn environment(&self) -> Vec<(String, String)> {
        let own = self.placeholders().map(|(name, value)| (name.to_ascii_uppercase(), value));
        let port = ("PORT".to_owned(), self.values.port.to_string());
        own.into_iter().chain([port]).collect()
    }

    /// Extracts the result and the number of requests from the client's output. The number is 0 if
    /// `[load.client]` does not set `count`. A missing number, or one that is not positive, is an
    /// error.
    fn read(&self, output: &str, took: Duration) -> Result<Ran, String> {
        let positive = |value: f64| match value {
            value if value.is_finite() && value > 0.0 => Ok(value),
            value => Err(format!("printed {value}, of which no ratio can be made")),
        };
        let value = positive(self.client.metric.number(output)?)?;
        let count = self.client.count.as_ref().map(|count| count.number(output)).transpose()?;
        let count = count.map(positive).transpose()?.unwrap_or(0.0) as u64;
        Ok(Ran { printed: Printed { value, better: self.client.better }, count, took })
    }
}

impl Runner {
    /// Runs a client command until its whole process group has ended. Ends the command early if its
    /// time is over, the server has ended or the user interrupts the run.
    ///
    /// # Errors
    /// An interruption, or a failure of a keeper process, ends the experiment. A failure of the
    /// client or the server ends only the trial.
    pub(crate) fn run_client(&self, task: &Task<'_>, server: &mut Keeper) -> Result<Ran, RunError> {
        let mut keeper = Keeper::open(&self.program).map_err(broken)?;
        let argv: Vec<String> = task.client.command.iter().map(|word| task.fill(word)).collect();
        let name = argv[0].clone();
        let launch = Launch {
            argv: self.fill_command(&argv, task.values),
            env: task.environment(),
            cwd: self.plan.dir.clone(),
            cpus: self.plan.load.cpus.clone(),
            grace: Duration::from_secs(1),
        };
        keeper.start(launch).map_err(broken)?;
        let began = Instant::now();
        let patience = task.duration + task.client.timeout;
        let wrong = loop {
            if self.interrupt.is_set() {
                return Err(Halt::Interrupted.into());
            }
            if let Some(how) = server.ended() {
                return Err(RunError::Trial(format!("the server was gone: {how}")));
            }
            match keeper.ended() {
                Some(ENDED_WELL) => {
                    let took = began.elapsed();
                    let output = printed(&keeper.tmp().join(OUTPUT_FILE));
                    let read = output.map_err(|error| format!("left no output: {error}"));
                    match read.and_then(|output| task.read(&output, took)) {
                        Ok(ran) => return Ok(ran),
                        Err(wrong) => break wrong,
                    }
                }
                Some(how) => break format!("failed: {how}"),
                None if began.elapsed() > patience => {
                    break format!("did not end within {patience:?} and was ended");
                }
                None => std::thread::sleep(READY_INTERVAL),
            }
        };
        let output = keeper.last_output();
        let last = &output[output.len().saturating_sub(QUOTED_LINES)..];
        let quoted = match last {
            [] => "; it printed nothing".to_owned(),
            lines => format!("; the end of what it printed: {}", lines.join(" / ")),
        };
        Err(RunError::Trial(format!("the client {name} {wrong}{quoted}")))
    }
}

/// Returns the last `READ_BYTES` bytes of a file as text.
fn printed(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(READ_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
