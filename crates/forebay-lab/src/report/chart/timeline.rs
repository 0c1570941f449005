//! Charts of one load over time: lines, a heat map of latencies, and their distribution.

use forebay_stat::Latency;

use super::comparison::axis_label;
use super::{Area, EndLabel, Scale, Screen, Svg, both, end_labels, value_axis};
use crate::number;

const BOTTOM: f64 = 260.0;
/// Ratio of largest to smallest value above which an axis of latencies is logarithmic.
const LINEAR_RANGE: f64 = 8.0;

/// Line of a chart over time.
pub struct TimeLine {
    pub name: &'static str,
    /// Number of the colour.
    pub colour: usize,
    /// Seconds since the start, and the value.
    pub points: Vec<(f64, f64)>,
}

/// Columns of a heat map.
pub struct HeatMap {
    /// Seconds since the start, at the left edge of each column, with its latencies.
    pub columns: Vec<(f64, Latency)>,
    /// Width of a column in seconds.
    pub width: f64,
}

/// Draws lines over time. `is_time` is true if the values are latencies in microseconds. Returns
/// `None` without points.
pub fn over_time(title: &str, lines: &[TimeLine], is_time: bool) -> Option<String> {
    both(|screen| draw_lines(screen, title, lines, is_time))
}

fn draw_lines(screen: Screen, title: &str, lines: &[TimeLine], is_time: bool) -> Option<String> {
    let area = screen.area(BOTTOM);
    let points = || lines.iter().flat_map(|line| &line.points);
    let values = || points().map(|point| point.1);
    let (lowest, highest) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let end = points().map(|point| point.0).reduce(f64::max)?;
    let scale = if is_time && highest > lowest.max(1.0) * LINEAR_RANGE {
        Scale::logarithmic(lowest.max(1.0), highest, area.bottom, area.top)
    } else {
        Scale::linear(highest, 4, area.bottom, area.top)
    };
    let mut svg = Svg::new(screen, area.bottom + 34.0, title);
    value_axis(&mut svg, area, &scale, |value| match value {
        0.0 => "0".to_owned(),
        value if is_time => axis_label(value),
        value => number::significant(value),
    });
    let across = time_axis(&mut svg, area, end, screen.steps());
    let mut labels = Vec::new();
    for line in lines {
        let Some(last) = line.points.last() else { continue };
        let colour = format!("var(--s{})", line.colour % 7);
        let at = |point: &(f64, f64)| (across.at(point.0), scale.at(point.1));
        let placed: Vec<_> = line.points.iter().map(at).collect();
        svg.path("line", &placed, &colour);
        if let [only] = placed.as_slice() {
            svg.dot("point", *only, 3.5, &colour, line.name);
        }
        let figure = if is_time { number::time(last.1) } else { number::rate(last.1) };
        let y = scale.at(last.1);
        labels.push(EndLabel { y, name: line.name, short: String::new(), figure, colour });
    }
    end_labels(&mut svg, screen, area, labels);
    Some(svg.finish())
}

/// Draws the axis of seconds. Returns the scale of this axis.
fn time_axis(svg: &mut Svg, area: Area, end: f64, steps: usize) -> Scale {
    let across = Scale::linear(end.max(1.0), steps, area.left, area.right);
    for &tick in across.ticks() {
        let x = across.at(tick);
        svg.line("tickmark", (x, area.bottom), (x, area.bottom + 5.0));
        svg.text("tick middle", (x, area.bottom + 22.0), &format!("{tick} s"));
    }
    across
}

/// Draws the number of replies for each time and latency. Returns `None` without latencies.
pub fn heat_map(map: &HeatMap) -> Option<String> {
    both(|screen| draw_heat_map(screen, map))
}

fn draw_heat_map(screen: Screen, map: &HeatMap) -> Option<String> {
    let rows = if screen == Screen::Wide { 28 } else { 18 };
    let area = screen.area(BOTTOM);
    let known = || map.columns.iter().filter(|(_, latency)| !latency.is_empty());
    let lowest = known().map(|(_, latency)| latency.min_us()).min()?.max(1) as f64;
    let highest = known().map(|(_, latency)| latency.max_us()).max()? as f64;
    let scale = Scale::logarithmic(lowest, highest.max(lowest * 1.5), area.bottom, area.top);
    let bounds = bounds(lowest, highest.max(lowest * 1.5), rows);
    let mut svg = Svg::new(screen, area.bottom + 34.0, "Latencies over time");
    value_axis(&mut svg, area, &scale, axis_label);
    let end = map.columns.last().map_or(1.0, |(start, _)| start + map.width);
    let across = time_axis(&mut svg, area, end, screen.steps());
    for (start, latency) in known() {
        let x = across.at(*start);
        let width = across.at(start + map.width) - x;
        for pair in bounds.windows(2) {
            let share = latency.share_between(pair[0], pair[1] - 1.0);
            if share <= 0.0 {
                continue;
            }
            let (top, bottom) = (scale.at(pair[1]), scale.at(pair[0]));
            // The square root makes rare slow replies visible.
            let opacity = share.sqrt().clamp(0.08, 1.0);
            let (from, to) = (number::time(pair[0]), number::time(pair[1]));
            let tooltip = format!("{start:.0} s, {from} to {to}: {:.2} %", share * 100.0);
            svg.cell((x, top), (width, bottom - top), opacity, &tooltip);
        }
    }
    Some(svg.finish())
}

/// Draws the share of replies in each range of latency. Returns `None` without latencies.
pub fn distribution(latency: &Latency) -> Option<String> {
    both(|screen| draw_distribution(screen, latency))
}

fn draw_distribution(screen: Screen, latency: &Latency) -> Option<String> {
    if latency.is_empty() {
        return None;
    }
    let bars = if screen == Screen::Wide { 48 } else { 24 };
    let area = screen.area(BOTTOM);
    let lowest = latency.min_us().max(1) as f64;
    let highest = (latency.max_us() as f64).max(lowest * 1.5);
    let bounds = bounds(lowest, highest, bars);
    let share = |pair: &[f64]| latency.share_between(pair[0], pair[1] - 1.0) * 100.0;
    let most = bounds.windows(2).map(share).fold(0.0, f64::max);
    let scale = Scale::linear(most, 4, area.bottom, area.top);
    let across = Scale::logarithmic(lowest, highest, area.left, area.right);
    let mut svg = Svg::new(screen, area.bottom + 34.0, "Distribution of latency");
    value_axis(&mut svg, area, &scale, |percent| match percent {
        0.0 => "0".to_owned(),
        percent => format!("{} %", number::significant(percent)),
    });
    let step = across.ticks().len().div_ceil(screen.steps() + 1).max(1);
    for &tick in across.ticks().iter().step_by(step) {
        let x = across.at(tick);
        svg.line("tickmark", (x, area.bottom), (x, area.bottom + 5.0));
        svg.text("tick middle", (x, area.bottom + 22.0), &axis_label(tick));
    }
    for pair in bounds.windows(2) {
        let percent = share(pair);
        let (left, top) = (across.at(pair[0]), scale.at(percent));
        let size = ((across.at(pair[1]) - left - 1.0).max(0.5), area.bottom - top);
        let (from, to) = (number::time(pair[0]), number::time(pair[1]));
        svg.cell((left, top), size, 0.8, &format!("{from} to {to}: {percent:.2} %"));
    }
    Some(svg.finish())
}

/// Returns the bounds of at most `count` parts of a range, in whole microseconds. The parts have
/// equal widths on a logarithmic axis. Each latency is in exactly one part.
fn bounds(lowest: f64, highest: f64, count: usize) -> Vec<f64> {
    let factor = (highest / lowest).ln() / count as f64;
    let bound = |index: usize| (lowest * (factor * index as f64).exp()).floor();
    let mut bounds: Vec<f64> = (0..=count).map(bound).collect();
    if let Some(last) = bounds.last_mut() {
        *last = highest.ceil() + 1.0;
    }
    bounds.dedup();
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_is_in_exactly_one_part() {
        let mut latency = Latency::new();
        (1..5000).for_each(|us| latency.record_us(us));
        latency.record_us(1_000_000);
        let bounds = bounds(1.0, latency.max_us() as f64, 28);
        let shares: f64 =
            bounds.windows(2).map(|pair| latency.share_between(pair[0], pair[1] - 1.0)).sum();
        // Near a bound, a latency may count for both parts, to the histogram's precision.
        assert!((shares - 1.0).abs() < 0.02, "{shares}");
    }

    #[test]
    fn charts_without_values_are_left_out() {
        let line = TimeLine { name: "p50", colour: 0, points: Vec::new() };
        assert_eq!(over_time("x", &[line], true), None);
        assert_eq!(heat_map(&HeatMap { columns: vec![(0.0, Latency::new())], width: 1.0 }), None);
        assert_eq!(distribution(&Latency::new()), None);
        let one = TimeLine { name: "<p50>", colour: 0, points: vec![(1.0, 0.0)] };
        let svg = over_time("x", &[one], true).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("<p50>"), "{svg}");
    }
}
