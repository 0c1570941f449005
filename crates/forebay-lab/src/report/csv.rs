//! The report as CSV: one line per trial, for spreadsheets.

use crate::{Experiment, Trial};

const COLUMNS: &str = "configuration,round,order,void,requests_per_s,completed,failed,duration_s,p50_us,\
                       p99_us,cpu_us_per_request,rss_start,rss_end,rss_max,processes_max,threads_max,\
                       fds_max";

/// Returns all trials as CSV. Values that were not measured are empty.
pub fn csv(experiment: &Experiment) -> String {
    let mut out = format!("{COLUMNS}\n");
    for results in &experiment.results {
        for trial in &results.trials {
            out += &line(&results.configuration.name, trial);
        }
    }
    out
}

/// Returns the line of one trial, in the order of `COLUMNS`. A trial without a measurement has
/// empty columns.
fn line(name: &str, trial: &Trial) -> String {
    let void = trial.void.as_deref().unwrap_or_default();
    let (round, order) = (trial.id.round, trial.id.order);
    let mut line = format!("{},{round},{order},{}", quoted(name), quoted(void));
    let Some(measured) = &trial.measured else {
        return line + &",".repeat(COLUMNS.matches(',').count() - 3) + "\n";
    };
    let (outcome, server) = (&measured.outcome, &measured.server);
    line += &format!(
        ",{},{},{},{},{},{},{}",
        measured.rate(),
        outcome.requests.completed,
        outcome.requests.failed,
        outcome.duration.as_secs_f64(),
        outcome.latency.percentile_us(50.0),
        outcome.latency.percentile_us(99.0),
        measured.cpu_us_per_request().map(|us| us.to_string()).unwrap_or_default(),
    );
    let most = &server.most;
    line += &format!(
        ",{},{},{},{},{},{}\n",
        server.rss_start, server.rss_end, most.rss, most.processes, most.threads, most.fds
    );
    line
}

/// Quotes a text according to RFC 4180. The prefix `'` keeps spreadsheets from reading a text as a
/// formula.
fn quoted(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let plain = if is_formula { format!("'{text}") } else { text.to_owned() };
    if plain.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", plain.replace('"', "\"\""));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_in_their_cells() {
        assert_eq!(quoted("a"), "a");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
    }
}
