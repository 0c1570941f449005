//! Profile trials: after all rounds, each server is loaded once more while `perf` takes samples.
//! These trials have no influence on other results. A failure of a profile trial becomes a note.

mod perf;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::time::{Duration, Instant};

use forebay_load::{Spec, fetch};

use crate::experiment::{Amount, Configuration};
use crate::profile::{self, KERNEL, Profile, Stacks};
use crate::results::{Experiment, Results};
use crate::round::Standing;
use crate::schedule::{Member, Progress, Turn};
use crate::trial::{Halt, Runner};
use perf::{Attached, ProfileFailure, is_installed};

/// Duration of the load in a profile trial, unless `duration` of `[load]` is shorter.
const TIME: Duration = Duration::from_secs(3);
/// Maximum sampling frequency in Hz. More samples would show nothing new.
const MOST_FREQUENT: u32 = 499;
const LEAST_FREQUENT: u32 = 19;

/// Smallest share of the measured CPU time that samples should cover. If the samples cover less,
/// the profile gets a note. With fewer than `FEWEST_EXPECTED` expected samples, the profile gets no
/// note.
const LEAST_SHARE: f64 = 0.7;
const FEWEST_EXPECTED: f64 = 50.0;

const MISSING: &str = "perf is not installed (Debian: apt-get install linux-perf; Ubuntu: \
                       linux-tools-generic)";

/// Runs the profile trials of `experiment`.
///
/// # Errors
/// Fails if a signal interrupts the run. The remaining profile trials are then skipped, and
/// finished profiles are kept.
pub fn run(
    experiment: &mut Experiment,
    runner: &Runner,
    progress: &mut dyn Progress,
) -> Result<(), Halt> {
    let mut hopeless = (!is_installed()).then(|| MISSING.to_owned());
    let can_run = |results: &&mut Results| results.can_run() && results.start_failure().is_none();
    for results in experiment.results.iter_mut().filter(can_run) {
        let configuration = &results.configuration;
        progress.begin_profile(configuration);
        let profiled = match &hopeless {
            Some(why) => Err(ProfileFailure::Other(why.clone())),
            None => profile_trial(runner, configuration),
        };
        let profile = match profiled {
            Ok(profile) => profile,
            Err(ProfileFailure::Interrupted) => return Err(Halt::Interrupted),
            Err(failure) => {
                if let ProfileFailure::Refused(why) = &failure {
                    hopeless = Some(why.clone());
                }
                Profile::none(format!("not profiled: {failure}"))
            }
        };
        progress.end_profile(configuration, &profile);
        results.profile = Some(profile);
    }
    Ok(())
}

fn profile_trial(
    runner: &Runner,
    configuration: &Configuration,
) -> Result<Profile, ProfileFailure> {
    if configuration.start.is_empty() {
        let why = "forebay did not start this server and does not know its processes";
        return Err(ProfileFailure::Other(why.to_owned()));
    }
    let time = match runner.plan.load_of(configuration).amount {
        Amount::Duration(duration) => duration.min(TIME),
        Amount::Requests(_) => TIME,
    };
    let mut server = Standing::start(runner, Member::apart(configuration))?;
    let frequency = frequency(runner.cores, time);
    let mut attached = Attached::begin(runner, &server.tree(), frequency)?;
    server.turn(runner, Turn { member: 0, slice: 0, amount: Amount::Duration(time) })?;
    let ended_early = attached.ended_early();
    let recorded = attached.end(runner);
    let timings = server.spec().map_or_else(Vec::new, ask);
    let trial = server.finish(runner)?;
    if let (true, Some(why)) = (trial.failed, &trial.void) {
        return Err(ProfileFailure::Other(why.clone()));
    }
    recorded?;
    // The parsing takes CPU time, so it starts only now, after all measurements.
    let text = attached.script(runner)?;
    let mut stacks = Stacks::default();
    File::open(text).and_then(|text| profile::fold(BufReader::new(text), &mut stacks)).map_err(
        |error| ProfileFailure::Other(format!("cannot read the output of perf: {error}")),
    )?;
    let counted = trial.measured.as_ref().map_or(0.0, |m| m.server.cpu.total().as_secs_f64());
    let completed = trial.measured.map_or(0, |measured| measured.outcome.requests.completed);
    let requests = (completed > 0 && !ended_early).then_some(completed);
    let profile = Profile { frequency, requests, stacks, timings, notes: Vec::new() };
    let profile = add_notes(profile, ended_early, perf::hides_kernel())?;
    Ok(if ended_early { profile } else { note_unsampled(profile, counted) })
}

/// Adds notes to the profile. `hides_kernel` is true if the system hides kernel functions from
/// ordinary users. A profile without samples is an error.
fn add_notes(
    mut profile: Profile,
    ended_early: bool,
    hides_kernel: bool,
) -> Result<Profile, ProfileFailure> {
    if profile.stacks.samples() == 0 {
        let why = "perf took no sample: the server used almost no CPU time";
        return Err(ProfileFailure::Other(why.to_owned()));
    }
    if ended_early {
        let why = "perf stopped before the load was over, because its output reached the size limit: shares are \
                   right, times per request are not known";
        profile.notes.push(why.to_owned());
    }
    let is_kernel = |index| profile.stacks.name(index).ends_with(KERNEL);
    if hides_kernel && !(0..profile.stacks.nodes().len()).any(is_kernel) {
        let why = "without the time in the kernel, which perf may not see: run forebay as root, or as root \
                   `sysctl kernel.perf_event_paranoid=1`";
        profile.notes.push(why.to_owned());
    }
    if profile.stacks.cut() > 0 {
        let cut = profile.stacks.cut();
        let why =
            format!("too many different stacks: of {cut} samples only the outer frames are known");
        profile.notes.push(why);
    }
    Ok(profile)
}

/// Adds a note if the samples cover much less than `counted`, the measured CPU time in seconds. The
/// usual reason is that the sampling clock restarts with each process, so that perf misses the
/// start of each process. Adds nothing to a profile that already has a note.
fn note_unsampled(mut profile: Profile, counted: f64) -> Profile {
    let expected = counted * f64::from(profile.frequency);
    let share = profile.stacks.samples() as f64 / expected;
    if expected > FEWEST_EXPECTED && share < LEAST_SHARE && profile.notes.is_empty() {
        profile.notes.push(format!(
            "the samples cover {:.0} % of the processor time that the server took: perf does not see the first \
             {:.1} ms of a process, so it misses processes that end earlier",
            share * 100.0,
            1e3 / f64::from(profile.frequency)
        ));
    }
    profile
}

/// Returns the highest sampling frequency in Hz at which the samples of all cores fit into perf's
/// file. The frequency is between `LEAST_FREQUENT` and `MOST_FREQUENT` even if the samples do not
/// fit.
fn frequency(cores: usize, time: Duration) -> u32 {
    let seconds = time.as_secs_f64().max(0.1) * cores.max(1) as f64;
    let fitting = (perf::MOST_BYTES / perf::BYTES_OF_SAMPLE) as f64 / seconds;
    (fitting as u32).clamp(LEAST_FREQUENT, MOST_FREQUENT)
}

// Processing times that a server reports in `Server-Timing` fields of its replies
// (<https://www.w3.org/TR/server-timing/>). Forebay sends these fields with `timing = true`.

/// Number of requests that are sent, one after the other.
const REQUESTS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after which no further request is sent. These requests cannot be interrupted, so they must
/// not take long.
const LONGEST: Duration = Duration::from_secs(2);
/// Maximum number of steps, and maximum number of characters in a step's name.
const MOST_STEPS: usize = 20;
const LONGEST_NAME: usize = 40;

/// Sends up to `REQUESTS` GET requests. Returns each processing step that the server reports, with
/// its median time in milliseconds, in the order of the server. Returns an empty list if the server
/// reports no steps. Sends nothing if the load has a body, or a method other than GET.
fn ask(spec: &Spec) -> Vec<(String, f64)> {
    if spec.method != "GET" || !spec.body.is_empty() {
        return Vec::new();
    }
    let (mut order, mut times) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
    let began = Instant::now();
    for _ in 0..REQUESTS {
        if began.elapsed() > LONGEST {
            break;
        }
        let Ok(reply) = fetch(&spec.url, PATIENCE, &spec.headers) else { break };
        let fields =
            reply.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("server-timing"));
        let steps: Vec<(String, f64)> = fields.flat_map(|(_, value)| parse(value)).collect();
        if steps.is_empty() {
            break;
        }
        for (name, time) in steps {
            if !times.contains_key(&name) && order.len() < MOST_STEPS {
                order.push(name.clone());
            }
            times.entry(name).or_default().push(time);
        }
    }
    let median = |name: String| {
        let mut times = times.remove(&name)?;
        times.sort_by(f64::total_cmp);
        Some((name, *times.get(times.len() / 2)?))
    };
    order.into_iter().filter_map(median).collect()
}

fn parse(value: &str) -> Vec<(String, f64)> {
    let step = |text: &str| {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().filter(|name| !name.is_empty())?;
        let time = parts.find_map(|part| part.strip_prefix("dur="))?;
        let time = time.trim_matches('"').parse::<f64>().ok();
        let time = time.filter(|time| time.is_finite() && *time >= 0.0)?;
        Some((name.chars().take(LONGEST_NAME).collect(), time))
    };
    value.split(',').filter_map(step).take(MOST_STEPS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_of_a_profile_are_noted() {
        let notes = |folded: &str, ended_early, hides_kernel| {
            let stacks = Stacks::read_folded(folded.as_bytes()).unwrap();
            let profile = Profile { frequency: 499, stacks, ..Profile::default() };
            add_notes(profile, ended_early, hides_kernel).map(|profile| profile.notes.join(", "))
        };
        let has = |notes: Result<String, ProfileFailure>, part: &str| {
            notes.is_ok_and(|notes| notes.contains(part))
        };
        assert!(has(notes("a;b 1\n", false, true), "without the time in the kernel"));
        assert!(has(notes("a;b 1\n", true, false), "shares are right"));
        for (folded, hides) in [("a;b_[k] 1\n", true), ("a;b 1\n", false)] {
            assert_eq!(notes(folded, false, hides), Ok(String::new()));
        }
        assert!(notes("", false, false).is_err());
    }

    #[test]
    fn processor_time_that_was_not_sampled_is_noted() {
        let stacks = Stacks::read_folded(&b"a 250\n"[..]).unwrap();
        let profile = Profile { frequency: 500, stacks, ..Profile::default() };
        let notes = |counted| note_unsampled(profile.clone(), counted).notes.join(", ");
        assert!(
            notes(1.0).contains("cover 50 % of the processor time")
                && notes(1.0).contains("2.0 ms")
        );
        assert_eq!((notes(0.6), notes(0.0)), (String::new(), String::new()));
    }

    #[test]
    fn samples_of_all_cores_find_room() {
        assert_eq!(frequency(2, TIME), MOST_FREQUENT);
        let many = frequency(64, TIME);
        assert!((LEAST_FREQUENT..200).contains(&many), "{many}");
        assert!(u64::from(many) * 64 * 3 * perf::BYTES_OF_SAMPLE <= perf::MOST_BYTES);
    }

    #[test]
    fn steps_with_a_time_are_read() {
        let steps =
            parse("head;dur=0.5, miss, db;desc=\"<a>\";dur=\"12\", x;dur=-1, y;dur=NaN,;dur=1");
        assert_eq!(steps, [("head".to_owned(), 0.5), ("db".to_owned(), 12.0)]);
    }
}
