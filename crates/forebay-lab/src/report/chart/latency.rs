//! Chart of latency by percentile, over all counted trials of a configuration.

use super::{Area, EndLabel, Scale, Screen, Svg, both, colours, end_labels, value_axis};
use crate::Row;
use crate::number;

const BOTTOM: f64 = 320.0;
const PERCENTILES: [f64; 6] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
/// Ratio of largest to smallest value above which the axis is logarithmic.
const LINEAR_RANGE: f64 = 8.0;

/// Draws the chart. Returns `None` if no latency was recorded.
pub fn latency(rows: &[Row]) -> Option<String> {
    both(|screen| chart(rows, screen))
}

/// Draws the chart for one type of screen. Each configuration has a line through its percentiles.
/// Returns `None` if no configuration has a percentile.
fn chart(rows: &[Row], screen: Screen) -> Option<String> {
    let area = screen.area(BOTTOM);
    let series: Vec<Vec<(f64, f64)>> = rows.iter().map(points).collect();
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
        let x = across(area, percent, rarest);
        svg.line("tickmark", (x, area.bottom), (x, area.bottom + 5.0));
        svg.text("tick middle", (x, area.bottom + 22.0), &format!("p{percent}"));
    }
    let mut labels = Vec::new();
    let colours = colours(rows.iter().map(|row| &row.baseline));
    for ((row, points), colour) in rows.iter().zip(&series).zip(&colours) {
        let Some(last) = points.last() else { continue };
        let placed: Vec<(f64, f64)> = points
            .iter()
            .map(|(percent, us)| (across(area, *percent, rarest), scale.at(*us)))
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
fn points(row: &Row) -> Vec<(f64, f64)> {
    PERCENTILES
        .iter()
        .filter_map(|&percent| {
            Some((percent, number::percentile_us(&row.latency, percent)? as f64))
        })
        .collect()
}

/// Returns the horizontal position of the percentile `percent` on an axis that ends at the
/// percentile `rarest`. The steps from 90 to 99 and from 99 to 99.9 % have equal widths.
fn across(area: Area, percent: f64, rarest: f64) -> f64 {
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
