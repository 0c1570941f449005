//! Charts that compare the configurations of an experiment: latency, requests per second, and memory
//! and CPU time during the load.

use forebay_stat::{Summary, t_quantile};

use super::{
    Area, EndLabel, LONGEST_NAME, Scale, Screen, Svg, both, colours, end_labels, short_names,
    value_axis,
};
use crate::watch::CpuMethod;
use crate::{Experiment, Measured, Results, Row, Slice, number, trial};

const LATENCY_BOTTOM: f64 = 320.0;
const PERCENTILES: [f64; 6] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
/// Ratio of largest to smallest value above which the axis is logarithmic.
const LINEAR_RANGE: f64 = 8.0;

/// Draws the chart. Returns `None` if no latency was recorded.
pub fn latency(rows: &[Row]) -> Option<String> {
    both(|screen| draw_latency(rows, screen))
}

/// Draws the chart for one type of screen. Each configuration has a line through its percentiles.
/// Returns `None` if no configuration has a percentile.
fn draw_latency(rows: &[Row], screen: Screen) -> Option<String> {
    let area = screen.area(LATENCY_BOTTOM);
    let series: Vec<Vec<(f64, f64)>> = rows.iter().map(latency_points).collect();
    let values = || series.iter().flatten().map(|(_, us)| *us);
    let (lowest, highest) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let scale = if highest > lowest.max(1.0) * LINEAR_RANGE {
        Scale::logarithmic(lowest.max(1.0), highest, area.bottom, area.top)
    } else {
        Scale::linear(highest, 5, area.bottom, area.top)
    };
    let mut svg = Svg::new(screen, area.bottom + 34.0, "Latency by percentile");
    value_axis(&mut svg, area, &scale, axis_label);
    let rarest = series.iter().flatten().map(|(percent, _)| *percent).fold(0.0, f64::max);
    for percent in PERCENTILES.into_iter().filter(|percent| *percent <= rarest) {
        let x = percentile_position(area, percent, rarest);
        svg.line("tickmark", (x, area.bottom), (x, area.bottom + 5.0));
        svg.text("tick middle", (x, area.bottom + 22.0), &format!("p{percent}"));
    }
    let mut labels = Vec::new();
    let colours = colours(rows.iter().map(|row| &row.baseline));
    for ((row, points), colour) in rows.iter().zip(&series).zip(&colours) {
        let Some(last) = points.last() else { continue };
        let placed: Vec<(f64, f64)> = points
            .iter()
            .map(|(percent, us)| (percentile_position(area, *percent, rarest), scale.at(*us)))
            .collect();
        svg.path("line", &placed, colour);
        let end = placed[placed.len() - 1];
        if screen == Screen::Wide {
            svg.coloured_line("leader", end, (area.right + 8.0, end.1), colour);
        }
        for ((percent, us), at) in points.iter().zip(&placed) {
            let tooltip = format!("{}: p{percent} {}", row.name, number::time(*us));
            svg.dot("point", *at, 3.5, colour, &tooltip);
        }
        labels.push(EndLabel {
            y: scale.at(last.1),
            name: &row.name,
            short: String::new(),
            figure: format!("p{} {}", last.0, number::time(last.1)),
            colour: colour.clone(),
        });
    }
    end_labels(&mut svg, screen, area, labels);
    Some(svg.finish())
}

/// Returns those percentiles that enough latencies support, as pairs of percent and microseconds.
fn latency_points(row: &Row) -> Vec<(f64, f64)> {
    PERCENTILES
        .iter()
        .filter_map(|&percent| {
            Some((percent, number::percentile_us(&row.latency, percent)? as f64))
        })
        .collect()
}

/// Returns the horizontal position of the percentile `percent` on an axis that ends at the
/// percentile `rarest`. The steps from 90 to 99 and from 99 to 99.9 % have equal widths.
fn percentile_position(area: Area, percent: f64, rarest: f64) -> f64 {
    let rarity = |percent: f64| -(1.0 - percent / 100.0).log10();
    let (first, last) = (rarity(PERCENTILES[0]), rarity(rarest.max(PERCENTILES[1])));
    let share = (rarity(percent) - first) / (last - first);
    area.left + 14.0 + share * (area.right - area.left - 28.0)
}

/// Returns a short text for a tick of an axis of latencies.
pub(super) fn axis_label(us: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.1}");
        text.trim_end_matches(".0").to_owned()
    };
    match us {
        0.0 => "0".to_owned(),
        us if us < 1e3 => format!("{} µs", short(us)),
        us if us < 1e6 => format!("{} ms", short(us / 1e3)),
        us => format!("{} s", short(us / 1e6)),
    }
}

// Chart of requests per second: a bar for the mean, its 95 % interval, and a dot per trial.

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
    both(|screen| draw_rate(experiment, rows, screen))
}

fn draw_rate(experiment: &Experiment, rows: &[Row], screen: Screen) -> Option<String> {
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
            Some(rate) => draw_bars(&mut svg, &scale, (bars, middle), rate, &trials, colour),
            None => svg.text("tick", (bars.left + 10.0, middle + 4.5), why_none(row)),
        }
    }
    Some(svg.finish())
}

fn draw_bars(
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

// Charts of resident memory and CPU time during the load, with one line per trial.

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
