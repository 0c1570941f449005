//! Chart of requests per second: a bar for the mean, its 95 % interval, and a dot per trial.

use forebay_stat::{Summary, t_quantile};

use super::{LONGEST_NAME, Scale, Screen, Svg, both, colours, short_names};
use crate::number;
use crate::{Experiment, Row, trial};

const TOP: f64 = 8.0;

/// Geometry of the bars on a screen.
#[derive(Clone, Copy)]
struct Bars {
    left: f64,
    right: f64,
    /// Height of a row.
    row: f64,
    /// Distance from the top of a row to the middle of its bar.
    middle: f64,
    /// Horizontal position at which the figures end.
    value: f64,
}

impl Bars {
    fn on(screen: Screen) -> Self {
        match screen {
            Screen::Wide => {
                Self { left: 232.0, right: 848.0, row: 46.0, middle: 23.0, value: 932.0 }
            }
            // The name is above the bar.
            Screen::Narrow => {
                Self { left: 6.0, right: 306.0, row: 60.0, middle: 40.0, value: 378.0 }
            }
        }
    }
}

/// Draws the chart. Returns `None` if no trial counts.
pub fn rate(experiment: &Experiment, rows: &[Row]) -> Option<String> {
    both(|screen| chart(experiment, rows, screen))
}

fn chart(experiment: &Experiment, rows: &[Row], screen: Screen) -> Option<String> {
    let bars = Bars::on(screen);
    let rates = || rows.iter().filter_map(|row| row.rate.as_ref());
    let highest = rates().map(|rate| rate.max).reduce(f64::max)?;
    // With few rounds, intervals are wide. The chart may cut them, because its axis ends at most
    // 20 % above the highest rate.
    let widest = rates().map(|rate| rate.mean + half_interval(rate)).fold(highest, f64::max);
    let highest = widest.min(highest * 1.2);
    let bottom = TOP + bars.row * rows.len() as f64;
    let scale = Scale::linear(highest, screen.steps(), bars.left, bars.right);
    let mut svg = Svg::new(screen, bottom + 30.0, "Requests per second of every trial");
    for &tick in scale.ticks() {
        svg.line("grid", (scale.at(tick), TOP), (scale.at(tick), bottom));
        let label = if tick == 0.0 { "0".to_owned() } else { number::significant(tick) };
        svg.text("tick middle", (scale.at(tick), bottom + 20.0), &label);
    }
    let colours = colours(rows.iter().map(|row| &row.baseline));
    let names = short_names(rows.iter().map(|row| row.name.as_str()), LONGEST_NAME);
    for (index, (row, colour)) in rows.iter().zip(&colours).enumerate() {
        let middle = TOP + bars.row * index as f64 + bars.middle;
        let name = &names[index];
        match screen {
            Screen::Wide => svg.text("series end", (bars.left - 14.0, middle + 4.5), name),
            Screen::Narrow => svg.text("series", (bars.left, middle - 18.0), name),
        }
        let unit = row.unit.as_deref().unwrap_or("requests/s");
        let trials: Vec<(String, f64)> = trial::counted(&experiment.results[index].trials)
            .map(|(trial, measured)| {
                let (round, rate) = (trial.id.round, measured.rate());
                (format!("round {round}: {} {unit}", number::rate(rate)), rate)
            })
            .collect();
        match &row.rate {
            Some(rate) => draw(&mut svg, &scale, (bars, middle), rate, &trials, colour),
            None => svg.text("tick", (bars.left + 10.0, middle + 4.5), why_none(row)),
        }
    }
    Some(svg.finish())
}

fn draw(
    svg: &mut Svg,
    scale: &Scale,
    (bars, middle): (Bars, f64),
    rate: &Summary,
    trials: &[(String, f64)],
    colour: &str,
) {
    let mean = scale.at(rate.mean);
    svg.bar("bar", (bars.left, middle - 12.0), (mean - bars.left, 24.0), colour);
    if rate.n > 1 {
        let half = half_interval(rate);
        let (low, high) = (scale.at((rate.mean - half).max(0.0)), scale.at(rate.mean + half));
        svg.coloured_line("interval", (low, middle), (high.min(bars.right), middle), colour);
    }
    svg.coloured_line("mean", (mean, middle - 12.0), (mean, middle + 12.0), colour);
    // A vertical offset per round keeps the dots of equal rates apart.
    let step = 16.0 / trials.len().max(2).saturating_sub(1) as f64;
    for (place, (tooltip, value)) in trials.iter().enumerate() {
        let y = if trials.len() == 1 { middle } else { middle - 8.0 + step * place as f64 };
        svg.dot("trial", (scale.at(*value), y), 3.2, colour, tooltip);
    }
    svg.text("value end", (bars.value, middle + 4.5), &number::rate(rate.mean));
}

/// Returns half of the width of the mean's 95 % interval (Student's t over the trials). The result
/// is 0 for fewer than two trials.
fn half_interval(rate: &Summary) -> f64 {
    match rate.n {
        0 | 1 => 0.0,
        n => t_quantile(0.975, n as u32 - 1) * rate.sd / (n as f64).sqrt(),
    }
}

fn why_none(row: &Row) -> &'static str {
    match row.notes.first() {
        Some(note) if note.starts_with("not installed") => "not installed",
        _ => "no trial counts",
    }
}
