//! Charts of resident memory and CPU time during the load, with one line per trial.

use super::{Area, EndLabel, Scale, Screen, Svg, both, colours, end_labels, value_axis};
use crate::number;
use crate::watch::CpuMethod;
use crate::{Experiment, Measured, Results, Row, Slice, trial};

const BOTTOM: f64 = 280.0;
/// Maximum ratio between the durations of trials that share a time axis. Above this ratio, the axis
/// shows shares of the load, and all lines have the same length.
const COMPARABLE: f64 = 4.0;

/// Quantity on the horizontal axis.
enum Across {
    /// Seconds since the start of the load, up to this value.
    Seconds(f64),
    /// Share of the trial's load that is complete.
    Share,
}

/// Chart, and the title of its horizontal axis.
pub struct Chart {
    pub svg: String,
    pub axis: &'static str,
}

/// Points of one trial's line: seconds since the start of the load, and the charted value.
type Line = Vec<(f64, f64)>;

/// Function that returns the figure at the end of a configuration's lines. The result is the
/// vertical position and the text of the figure.
type FinalFigure<'a> = &'a dyn Fn(&[Line]) -> Option<(f64, String)>;

/// Content of a chart with lines.
struct LineChart<'a> {
    title: &'a str,
    highest: f64,
    /// Lines of each configuration, one per trial.
    lines: Vec<Vec<Line>>,
    /// Returns the figure at the end of a configuration's lines.
    end: FinalFigure<'a>,
    label: &'a dyn Fn(f64) -> String,
}

/// Draws resident memory over time. Returns `None` if server processes were observed in no counted
/// trial.
pub fn memory(experiment: &Experiment, rows: &[Row]) -> Option<Chart> {
    let most = rows.iter().filter_map(|row| row.memory_most).max()?;
    let line = |measured: &Measured| {
        let points = measured.server.memory.iter();
        points.map(|point| (point.at.as_secs_f64(), point.rss as f64 / 1e6)).collect()
    };
    let end = |lines: &[Line]| {
        let ends: Vec<f64> = lines.iter().filter_map(|line| Some(line.last()?.1)).collect();
        mean(&ends).map(|end| (end, number::size(end * 1e6)))
    };
    draw(
        rows,
        &LineChart {
            title: "Resident memory over time",
            highest: most as f64 / 1e6,
            lines: lines(experiment, line),
            end: &end,
            label: &|megabytes| format!("{megabytes} MB"),
        },
    )
}

/// Draws the number of busy cores in each slice. Returns `None` if no trial has slices with a known
/// CPU time.
pub fn cpu(experiment: &Experiment, rows: &[Row]) -> Option<Chart> {
    let line = |measured: &Measured| {
        // Without a control group, CPU time is counted in clock ticks (10 ms), which are too coarse
        // for a single slice.
        let is_known = measured.server.cpu_method == CpuMethod::Cgroup && measured.slices.len() > 1;
        let mut loaded = 0.0;
        let slices = measured.slices.iter().filter(|_| is_known);
        let point = |slice: &Slice| {
            let seconds = slice.duration.as_secs_f64().max(1e-9);
            loaded += seconds;
            (loaded, slice.cpu.as_secs_f64() / seconds)
        };
        slices.map(point).collect()
    };
    let lines = lines(experiment, line);
    let highest = lines.iter().flatten().flatten().map(|point| point.1).reduce(f64::max)?;
    let end = |lines: &[Line]| {
        let all: Vec<f64> = lines.iter().flatten().map(|point| point.1).collect();
        mean(&all).map(|mean| (mean, number::significant(mean)))
    };
    let label = |cores: f64| format!("{}", (cores * 1e6).round() / 1e6);
    let title = "Cores taken over time";
    draw(rows, &LineChart { title, highest, lines, end: &end, label: &label })
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the lines of the counted trials whose server processes were observed.
fn lines(experiment: &Experiment, line: impl Fn(&Measured) -> Line) -> Vec<Vec<Line>> {
    let of = |results: &Results| {
        let counted = trial::counted(&results.trials).map(|(_, measured)| measured);
        let watched = counted.filter(|measured| measured.is_watched());
        watched.map(&line).filter(|line| !line.is_empty()).collect()
    };
    experiment.results.iter().map(of).collect()
}

fn draw(rows: &[Row], chart: &LineChart<'_>) -> Option<Chart> {
    let across = across(&chart.lines)?;
    let svg = both(|screen| Some(draw_on(screen, rows, chart, &across)))?;
    Some(Chart { svg, axis: across.name() })
}

/// Draws one line for each trial, and one label for each configuration at the end of its lines.
fn draw_on(screen: Screen, rows: &[Row], chart: &LineChart<'_>, across: &Across) -> String {
    let area = screen.area(BOTTOM);
    let scale = Scale::linear(chart.highest, 4, area.bottom, area.top);
    let mut svg = Svg::new(screen, area.bottom + 34.0, chart.title);
    value_axis(&mut svg, area, &scale, chart.label);
    across.axis(&mut svg, area, screen.steps());
    let mut labels = Vec::new();
    let colours = colours(rows.iter().map(|row| &row.baseline));
    for ((row, lines), colour) in rows.iter().zip(&chart.lines).zip(&colours) {
        for line in lines {
            let lasted = line.last().map_or(0.0, |point| point.0);
            let place =
                |&(at, value): &(f64, f64)| (across.place(area, at, lasted), scale.at(value));
            let points: Vec<(f64, f64)> = line.iter().map(place).collect();
            svg.path("thin", &points, colour);
        }
        let Some((end, figure)) = (chart.end)(lines) else { continue };
        labels.push(EndLabel {
            y: scale.at(end),
            name: &row.name,
            short: String::new(),
            figure,
            colour: colour.clone(),
        });
    }
    end_labels(&mut svg, screen, area, labels);
    svg.finish()
}

fn across(trials: &[Vec<Line>]) -> Option<Across> {
    let lengths = || trials.iter().flatten().filter_map(|line| Some(line.last()?.0));
    let (shortest, longest) = (lengths().reduce(f64::min)?, lengths().reduce(f64::max)?);
    Some(if longest > shortest * COMPARABLE { Across::Share } else { Across::Seconds(longest) })
}

impl Across {
    fn axis(&self, svg: &mut Svg, area: Area, steps: usize) {
        let (highest, unit) = match self {
            Self::Seconds(longest) => (*longest, " s"),
            Self::Share => (100.0, " %"),
        };
        let ticks = Scale::linear(highest, steps, 0.0, 1.0);
        for &tick in ticks.ticks().iter().filter(|tick| **tick <= highest * 1.001) {
            let x = area.left + tick / highest * (area.right - area.left);
            svg.line("tickmark", (x, area.bottom), (x, area.bottom + 5.0));
            let tick = (tick * 1e6).round() / 1e6;
            svg.text("tick middle", (x, area.bottom + 22.0), &format!("{tick}{unit}"));
        }
    }

    fn place(&self, area: Area, at: f64, lasted: f64) -> f64 {
        let share = match self {
            Self::Seconds(longest) => at / longest.max(1e-9),
            Self::Share => at / lasted.max(1e-9),
        };
        area.left + share * (area.right - area.left)
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Seconds(_) => "seconds since the load began",
            Self::Share => "share of the load done, since the trials differ much in length",
        }
    }
}
