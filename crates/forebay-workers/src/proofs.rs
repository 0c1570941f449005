//! What Forebay knows about the scripts of an application in mode `prove`: which of them may be kept
//! in a worker, because they leave nothing of one request to the next.
//!
//! A host tells what each request has left: the variables whose values differ from those before, each
//! with a digest. A variable that has the same digest after every request is harmless (a module that
//! was loaded, a connection, a table that was filled). A second digest is a finding, because then the
//! value depends on the request, or grows. So is what the host recognizes by itself: a value that
//! holds a cookie, an alarm that is still set. In doubt a script is not kept.
//!
//! The reports are lines in the standard error of the workers. They begin with a key that only the
//! worker of this application knows, so no text that a client makes a script print is a report. A
//! forked process that runs an unproved script has no key: its worker adds the key and the file's
//! name. So a script can lie about itself alone. Proved scripts share a process, as in mode
//! `registry`, and could lie about each other; but not about another application.

use crate::spec::{AppSpec, Kind, PerlMode, PythonMode};
use crate::supervisor::Command;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::mpsc::UnboundedSender;

/// A proof needs at least this many different inputs.
const MIN_INPUTS: usize = 5;
/// A script that changes more variables than this is not kept: something grows.
const MAX_TRACES: usize = 3000;
/// An array or a hash that gets more new elements than this in kept requests grows.
const MAX_GROWTH: usize = 100;
const MAX_SCRIPTS: usize = 1000;
/// How hosts begin the reason that a value contains an input.
const HOLDS: &str = "it holds ";

/// What the hosts of an application get for their reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProofKey {
    /// The first word of each report.
    pub(crate) key: String,
    /// Part of each digest, so that nobody can guess a value from its digest.
    pub(crate) salt: String,
    /// True if reports contain values, which may be secrets of visitors.
    pub(crate) shows_values: bool,
}

/// The state of one script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Path of the script, or name of the application.
    pub script: String,
    pub verdict: Verdict,
    /// Requests without a finding in a process of their own.
    pub requests: u64,
    /// Number of these that a proof needs.
    pub needed: u64,
    /// Number of different inputs among them.
    pub inputs: usize,
    /// Checks of kept requests without a finding.
    pub checks: u64,
    /// Variables that each request changes in the same way.
    pub harmless: usize,
    /// Mean time of one comparison, in microseconds.
    pub micros: u64,
}

impl Proof {
    /// A variable that still holds a value of one request alone after this many times the requests
    /// of a proof depends on that request.
    pub const MOST_ROUNDS: u64 = 4;

    /// Returns true if the requests differ enough for a proof. More of them can then end it.
    pub fn has_different_inputs(&self) -> bool {
        self.inputs >= MIN_INPUTS
    }
}

/// The verdict about one version of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It runs in processes of its own until it has had enough requests.
    Proving,
    /// It is kept.
    Proved,
    /// It runs in processes of its own until its file changes.
    Refused(Finding),
}

/// Why a script is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The variable, as the language writes it, or the property of the process.
    pub variable: String,
    /// What is wrong with it.
    pub why: String,
    /// File and line that seem to assign the variable; empty if they were not found.
    pub place: String,
    /// Its values after two requests, or descriptions of them.
    pub values: Vec<String>,
    /// What to do.
    pub cure: String,
}

/// The proofs of an application.
pub(crate) struct Proofs {
    pub(crate) key: ProofKey,
    needed: u64,
    /// The name of a PSGI or WSGI application. Empty for scripts, which have names of their own.
    application: String,
    /// The supervisor that replaces the workers after a demotion.
    pub(crate) demoted: OnceLock<UnboundedSender<Command>>,
    scripts: Mutex<HashMap<String, Record>>,
}

struct Record {
    version: String,
    /// What hosts are told once the script is proved.
    keep: Arc<str>,
    proof: Proof,
    inputs: HashSet<String>,
    /// The digest and the shown value of each variable that a request has changed.
    traces: HashMap<String, (String, String)>,
    /// Variables that held a value of their first request, by name: the number of this request, and
    /// the finding if the value depends on that. It may be a coincidence, or the doing of a visitor
    /// who has sent what the variable always holds.
    suspects: BTreeMap<String, (u64, Finding)>,
    /// The number of new elements of each array or hash that the checks of kept requests have found.
    grown: HashMap<String, usize>,
    micros: u64,
}

/// A report of a host.
struct Report<'a> {
    /// True if the request ran in a worker that keeps the script.
    is_kept: bool,
    script: String,
    version: &'a str,
    what: What,
}

enum What {
    /// A variable differs from before. `why` is empty unless that alone is a finding.
    Trace { variable: String, digest: String, value: String, place: String, why: String },
    /// The file of a kept script has changed.
    Changed,
    /// The request has ended.
    End { input: String, micros: u64 },
}

impl Proofs {
    /// Returns the proofs of the application, or `None` if it is not in mode `prove`.
    pub(crate) fn new(spec: &AppSpec) -> Option<Arc<Proofs>> {
        let proves = match spec.kind {
            Kind::PerlCgi { mode, .. } => mode == PerlMode::Prove,
            Kind::PythonCgi { mode, .. } => mode == PythonMode::Prove,
            Kind::Psgi { .. } | Kind::Wsgi { .. } => spec.proves,
            Kind::ModPerl { .. } => false,
        };
        let application = match &spec.kind {
            Kind::Psgi { file, .. } => file.display().to_string(),
            Kind::Wsgi { module, .. } => module.clone(),
            _ => String::new(),
        };
        let word = || format!("{:032x}", fastrand::u128(..));
        let key = ProofKey { key: word(), salt: word(), shows_values: spec.shows_values };
        let (needed, scripts) = (spec.prove_requests, Mutex::default());
        let demoted = OnceLock::new();
        proves.then(|| Arc::new(Proofs { key, needed, application, scripts, demoted }))
    }

    /// Returns what the host has to know about a script: `keep` or `refused`, and the version of its
    /// file. `None`: it is still to be proved. `script` is `None` for a PSGI or WSGI application.
    pub(crate) fn word(&self, script: Option<&Path>) -> Option<Arc<str>> {
        let scripts = self.scripts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let record = scripts.get(script.map_or(Some(&*self.application), Path::to_str)?)?;
        match record.proof.verdict {
            Verdict::Proving => None,
            Verdict::Proved => Some(Arc::clone(&record.keep)),
            Verdict::Refused(_) => Some(format!("refused {}", record.version).into()),
        }
    }

    /// Returns the proofs, in the order of names.
    pub(crate) fn list(&self) -> Vec<Proof> {
        let scripts = self.scripts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut all: Vec<Proof> = scripts.values().map(|record| record.proof.clone()).collect();
        all.sort_by(|a, b| a.script.cmp(&b.script));
        all
    }

    /// Takes a report out of a line of a worker's standard error. Returns the rest of the line, which
    /// a script has written without a newline, and a message for the log if a verdict has changed.
    pub(crate) fn hear<'a>(&self, line: &'a str) -> Heard<'a> {
        let Some((rest, report)) = line.split_once(&*self.key.key) else {
            return Heard { rest: line, is_report: false, news: None };
        };
        let news = parse(report).and_then(|report| self.note(report));
        Heard { rest, is_report: true, news }
    }

    fn note(&self, report: Report<'_>) -> Option<String> {
        let mut scripts = self.scripts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if scripts.len() >= MAX_SCRIPTS && !scripts.contains_key(&report.script) {
            return None;
        }
        let fresh = || Record::new(&report.script, report.version, self.needed);
        let record = scripts.entry(report.script.clone()).or_insert_with(fresh);
        if record.version != report.version {
            *record = fresh();
        }
        if matches!(record.proof.verdict, Verdict::Refused(_)) {
            return None;
        }
        let was_kept = record.proof.verdict == Verdict::Proved;
        let news = record.note(report);
        // Workers that have kept the script may hold what a visitor has left.
        if was_kept
            && record.proof.verdict != Verdict::Proved
            && let Some(supervisor) = self.demoted.get()
        {
            let _ = supervisor.send(Command::Restart);
        }
        news
    }
}

/// What [`Proofs::hear`] found in a line.
pub(crate) struct Heard<'a> {
    pub(crate) rest: &'a str,
    pub(crate) is_report: bool,
    pub(crate) news: Option<String>,
}

impl Record {
    fn new(script: &str, version: &str, needed: u64) -> Record {
        let proof = Proof {
            script: script.to_owned(),
            verdict: Verdict::Proving,
            requests: 0,
            needed,
            inputs: 0,
            checks: 0,
            harmless: 0,
            micros: 0,
        };
        Record {
            version: version.to_owned(),
            keep: format!("keep {version}").into(),
            proof,
            inputs: HashSet::new(),
            traces: HashMap::new(),
            suspects: BTreeMap::new(),
            grown: HashMap::new(),
            micros: 0,
        }
    }

    fn note(&mut self, report: Report<'_>) -> Option<String> {
        match report.what {
            What::Changed => None,
            What::End { micros, .. } if report.is_kept => {
                self.proof.checks += 1;
                self.count_time(micros);
                None
            }
            What::End { input, micros } => {
                self.proof.requests += 1;
                self.count_time(micros);
                if self.inputs.len() < MAX_TRACES {
                    self.inputs.insert(input);
                }
                self.proof.inputs = self.inputs.len();
                self.promote()
            }
            What::Trace { variable, why, place, value, digest } if !why.is_empty() => {
                let value = if value.is_empty() { description(&digest) } else { value };
                let finding = finding(&variable, why, place, vec![value.clone()]);
                let is_certain = report.is_kept || !finding.why.starts_with(HOLDS);
                match self.traces.get(&variable) {
                    // The same value without this input, or a second request of this visitor.
                    Some((known, _)) if *known == digest && finding.why.starts_with(HOLDS) => None,
                    None if !is_certain && self.traces.len() < MAX_TRACES => {
                        self.traces.insert(variable.clone(), (digest, value));
                        self.suspect(variable, finding)
                    }
                    _ => Some(self.refuse(finding)),
                }
            }
            What::Trace { variable, digest, value, place, .. } => {
                // Names and values may differ between a kept process and one of its own.
                let path =
                    if report.is_kept { format!("kept {variable}") } else { variable.clone() };
                let value = if value.is_empty() { description(&digest) } else { value };
                let Some((known, first)) = self.traces.get(&path) else {
                    let container = path.rsplit_once(['[', '{']).map(|(name, _)| name.to_owned());
                    self.traces.insert(path, (digest, value));
                    self.proof.harmless = self.traces.len();
                    if report.is_kept
                        && let Some(container) = container
                    {
                        let count = self.grown.entry(container).or_default();
                        *count += 1;
                        if *count > MAX_GROWTH {
                            let why = "it grows".to_owned();
                            return Some(self.refuse(finding(&variable, why, place, Vec::new())));
                        }
                    }
                    if self.traces.len() > MAX_TRACES {
                        let why = format!("requests change more than {MAX_TRACES} variables");
                        return Some(self.refuse(finding(&variable, why, place, Vec::new())));
                    }
                    return None;
                };
                if *known == digest {
                    self.suspects.remove(&path);
                    return None;
                }
                let why = if report.is_kept {
                    "it changes with each request in a kept process"
                } else {
                    "it differs after different requests"
                };
                let values = vec![first.clone(), value];
                Some(self.refuse(finding(&variable, why.to_owned(), place, values)))
            }
        }
    }

    /// Notes that a variable holds an input. Two elements of one container that hold inputs of two
    /// requests are entries by visitor.
    fn suspect(&mut self, variable: String, finding: Finding) -> Option<String> {
        let container = |name: &str| name.rsplit_once(['[', '{']).map(|(name, _)| name.to_owned());
        let (own, number) = (container(&variable), self.proof.requests);
        let has_other = self.suspects.iter().any(|(other, (request, _))| {
            *request != number && own.is_some() && container(other) == own
        });
        if has_other {
            return Some(self.refuse(finding));
        }
        self.suspects.insert(variable, (number, finding));
        None
    }

    fn count_time(&mut self, micros: u64) {
        self.micros = self.micros.saturating_add(micros);
        self.proof.micros = self.micros / (self.proof.requests + self.proof.checks).max(1);
    }

    fn promote(&mut self) -> Option<String> {
        let Proof { verdict, requests, needed, .. } = &self.proof;
        if *verdict != Verdict::Proving || requests < needed || !self.proof.has_different_inputs() {
            return None;
        }
        // Later requests clear a variable if they leave the same value without this input.
        if let Some((_, finding)) = self.suspects.values().next() {
            let is_enough = *requests >= Proof::MOST_ROUNDS * needed;
            let finding = finding.clone();
            return is_enough.then(|| self.refuse(finding));
        }
        self.proof.verdict = Verdict::Proved;
        let Proof { script, requests, .. } = &self.proof;
        Some(format!("{script} is proved after {requests} requests: workers keep it from now on"))
    }

    /// Returns the message for the log.
    fn refuse(&mut self, finding: Finding) -> String {
        let place =
            if finding.place.is_empty() { String::new() } else { format!(" ({})", finding.place) };
        let news = format!(
            "{}: each request gets a process of its own, because {} is not safe to keep: \
             {}{place}. {}",
            self.proof.script, finding.variable, finding.why, finding.cure
        );
        self.proof.verdict = Verdict::Refused(finding);
        news
    }
}

fn finding(variable: &str, why: String, place: String, values: Vec<String>) -> Finding {
    Finding {
        cure: cure(variable, &why).to_owned(),
        variable: variable.to_owned(),
        why,
        place,
        values: values.into_iter().filter(|value| !value.is_empty()).collect(),
    }
}

/// Describes a value by its digest: a kind, a length, and the first letters of a hash.
fn description(digest: &str) -> String {
    let Some((kind, (length, hash))) =
        digest.split_at_checked(1).and_then(|(kind, rest)| Some((kind, rest.split_once(':')?)))
    else {
        return String::new();
    };
    let hash = hash.get(..4).unwrap_or(hash);
    match kind {
        "t" => format!("a text of {length} bytes (#{hash})"),
        "n" => format!("a number of {length} digits (#{hash})"),
        "u" => "undefined".to_owned(),
        "a" => "removed".to_owned(),
        "h" => format!("a handle (#{hash})"),
        _ => format!("a structure (#{hash})"),
    }
}

/// What a user can do about a finding.
fn cure(variable: &str, why: &str) -> &'static str {
    let (variable, is_length) = match variable.strip_prefix("the length of ") {
        Some(container) => (container, true),
        None => (variable, false),
    };
    if why.contains("alarm") {
        "Call alarm 0 before the script ends"
    } else if why.contains("transaction") {
        "Commit or roll back before the script ends"
    } else if why.contains("child process") || why.contains("thread") {
        "Wait for it before the script ends, or start it with a job queue"
    } else if why.contains("not yet in its file") {
        "Close the handle"
    } else if variable == "the script" {
        "Nothing: it runs in processes of its own, as with mode = \"fork\""
    } else if variable.starts_with("my ") {
        "Pass the variable to the sub as an argument, or clear it at the end of the script"
    } else if variable.starts_with(['$', '@', '%']) || is_length && variable.contains("::") {
        "Declare it with `my` in the code that uses it, or clear it at the end of the script"
    } else if variable.starts_with("the ") || variable.starts_with("descriptors") {
        "Restore it before the script ends"
    } else if variable.starts_with("all variables") {
        "Load this module with `use`, so that each of its variables is compared"
    } else {
        "Keep it in a local variable, or reset it at the end of the request"
    }
}

/// Parses ` HOW SCRIPT VERSION WHAT ...`. Returns `None` for anything else.
fn parse(report: &str) -> Option<Report<'_>> {
    let mut words = report.trim().split(' ');
    let is_kept = match words.next()? {
        "kept" => true,
        "forked" => false,
        _ => return None,
    };
    let script = decode(words.next()?);
    let version = words.next()?;
    let what = match words.next()? {
        "trace" => What::Trace {
            variable: decode(words.next()?),
            digest: decode(words.next()?),
            value: decode(words.next()?),
            place: decode(words.next()?),
            why: decode(words.next()?),
        },
        "changed" => What::Changed,
        "end" => What::End { input: words.next()?.to_owned(), micros: words.next()?.parse().ok()? },
        _ => return None,
    };
    Some(Report { is_kept, script, version, what })
}

/// Decodes a word: `-` is the empty text, and `%XX` a byte. Control characters become `?`, because
/// the text is shown on terminals.
fn decode(word: &str) -> String {
    if word == "-" {
        return String::new();
    }
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, tail @ ..] = rest {
        let code =
            tail.get(..2).and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proofs(needed: u64) -> Proofs {
        let key = ProofKey { key: "KEY".into(), ..ProofKey::default() };
        let (application, demoted) = (String::new(), OnceLock::new());
        Proofs { key, needed, application, demoted, scripts: Mutex::default() }
    }

    fn end(proofs: &Proofs, how: &str, version: &str, input: usize) {
        proofs.hear(&format!("KEY {how} /s.pl {version} end {input} 7"));
    }

    fn trace(proofs: &Proofs, how: &str, digest: &str, why: &str) {
        proofs.hear(&format!("KEY {how} /s.pl 1 trace $main::x {digest} - /s.pl%20line%203 {why}"));
    }

    fn verdict(proofs: &Proofs) -> Verdict {
        proofs.list()[0].verdict.clone()
    }

    #[test]
    fn a_script_needs_enough_requests_and_different_inputs() {
        let proofs = proofs(10);
        for _ in 0..20 {
            trace(&proofs, "forked", "n1:abcd", "-");
            end(&proofs, "forked", "1", 1);
        }
        assert_eq!(verdict(&proofs), Verdict::Proving);
        assert_eq!(proofs.word(Some(Path::new("/s.pl"))), None);
        (2..=5).for_each(|input| end(&proofs, "forked", "1", input));
        assert_eq!(verdict(&proofs), Verdict::Proved);
        assert_eq!(proofs.word(Some(Path::new("/s.pl"))).as_deref(), Some("keep 1"));
        assert_eq!(proofs.word(Some(Path::new("/t.pl"))), None, "another script");
        end(&proofs, "forked", "2", 1);
        assert_eq!(verdict(&proofs), Verdict::Proving, "its file has changed");
    }

    #[test]
    fn a_second_value_ends_a_proof_and_demotes() {
        let proofs = proofs(5);
        (0..5).for_each(|input| end(&proofs, "forked", "1", input));
        trace(&proofs, "kept", "n1:abcd", "-");
        trace(&proofs, "forked", "n1:ffff", "-");
        assert_eq!(verdict(&proofs), Verdict::Proved, "kept and forked processes may differ");
        trace(&proofs, "kept", "n1:ffff", "-");
        let Verdict::Refused(finding) = verdict(&proofs) else { panic!("{:?}", proofs.list()) };
        assert_eq!((&*finding.variable, &*finding.place), ("$main::x", "/s.pl line 3"));
        assert_eq!(finding.values.len(), 2);
        end(&proofs, "forked", "1", 6);
        assert_eq!(proofs.word(Some(Path::new("/s.pl"))).as_deref(), Some("refused 1"));
    }

    #[test]
    fn a_visitor_who_sends_a_constant_does_not_demote() {
        let proofs = proofs(5);
        trace(&proofs, "forked", "t4:abcd", "it%20holds%20the%20parameter");
        (0..5).for_each(|input| end(&proofs, "forked", "1", input));
        assert_eq!(verdict(&proofs), Verdict::Proving, "another request has to leave the same");
        trace(&proofs, "forked", "t4:abcd", "-");
        trace(&proofs, "forked", "t4:abcd", "it%20holds%20the%20parameter");
        end(&proofs, "forked", "1", 6);
        assert_eq!(verdict(&proofs), Verdict::Proved);
    }

    #[test]
    fn a_value_of_one_visitor_alone_ends_a_proof() {
        let proofs = proofs(5);
        let sees = |variable: &str| {
            let why = "it%20holds%20the%20cookie";
            proofs.hear(&format!("KEY forked /s.pl 1 trace {variable} t4:abcd - - {why}"));
            end(&proofs, "forked", "1", 1);
        };
        sees("$x{first}");
        assert_eq!(verdict(&proofs), Verdict::Proving);
        sees("$x{second}");
        assert!(matches!(verdict(&proofs), Verdict::Refused(_)), "a cache by visitor");
        let proofs = self::proofs(5);
        trace(&proofs, "forked", "t4:abcd", "it%20holds%20the%20cookie");
        (0..20).for_each(|input| end(&proofs, "forked", "1", input));
        assert!(matches!(verdict(&proofs), Verdict::Refused(_)), "no other request has left it");
    }

    #[test]
    fn only_a_line_with_the_key_is_a_report() {
        let proofs = proofs(5);
        for line in ["KE forked /s.pl 1 end 1 7", "forked /s.pl 1 end 1 7"] {
            assert!(!proofs.hear(line).is_report, "{line}");
        }
        for line in ["KEY", "KEY  ", "KEY forked /s.pl", "KEY forked /s.pl 1 end x", "KEY x y z"] {
            assert!(proofs.hear(line).is_report, "{line}");
        }
        assert!(proofs.list().is_empty());
        let heard = proofs.hear("half a line KEY forked /s.pl 1 end 1 7");
        assert_eq!((heard.rest, proofs.list()[0].requests), ("half a line ", 1));
        assert_eq!(decode("a%0Ab%2fc%zz"), "a?b/c%zz");
    }
}
