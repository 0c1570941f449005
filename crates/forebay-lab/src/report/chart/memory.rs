//! Resident memory over time: a line per trial.

use super::{Area, EndLabel, Scale, Svg, WIDTH, colours, end_labels, value_axis};
use crate::number;
use crate::{Experiment, Measured, Row, trial};

const AREA: Area = Area { left: 78.0, right: WIDTH - 310.0, top: 10.0, bottom: 280.0 };
/// If trials differ more than this in length they are drawn equally long.
const COMPARABLE: f64 = 4.0;

/// What the horizontal axis shows.
enum Across {
    /// Seconds since the load began, up to this many.
    Seconds(f64),
    /// The part of its load that a trial has behind it.
    Share,
}

/// A chart and what its horizontal axis shows.
pub struct Chart {
    pub svg: String,
    pub axis: &'static str,
}

/// The chart; none where no trial counts.
pub fn memory(experiment: &Experiment, rows: &[Row]) -> Option<Chart> {
    let trials: Vec<Vec<&Measured>> = experiment
        .results
        .iter()
        .map(|results| {
            let counted = trial::counted(&results.trials).map(|(_, measured)| measured);
            counted.filter(|measured| measured.is_watched()).collect()
        })
        .collect();
    let most = rows.iter().filter_map(|row| row.memory_most).max()?;
    let across = across(&trials)?;
    let scale = Scale::linear(most as f64 / 1e6, 4, AREA.bottom, AREA.top);
    let mut svg = Svg::new(AREA.bottom + 34.0, "Resident memory over time");
    value_axis(&mut svg, AREA, &scale, |megabytes| format!("{megabytes} MB"));
    across.axis(&mut svg);
    let mut labels = Vec::new();
    let colours = colours(rows.iter().map(|row| &row.baseline));
    for ((row, trials), colour) in rows.iter().zip(&trials).zip(&colours) {
        let mut ends = Vec::new();
        for measured in trials {
            let memory = &measured.server.memory;
            let lasted = memory.last().map_or(0.0, |point| point.at.as_secs_f64());
            let points: Vec<(f64, f64)> = memory
                .iter()
                .map(|point| {
                    let x = across.place(point.at.as_secs_f64(), lasted);
                    (x, scale.at(point.rss as f64 / 1e6))
                })
                .collect();
            svg.path("thin", &points, colour);
            ends.extend(memory.last().map(|point| point.rss as f64));
        }
        if ends.is_empty() {
            continue;
        }
        let end = ends.iter().sum::<f64>() / ends.len() as f64;
        labels.push(EndLabel {
            y: scale.at(end / 1e6),
            name: &row.name,
            figure: number::size(end),
            colour: colour.clone(),
        });
    }
    end_labels(&mut svg, AREA, labels);
    Some(Chart { svg: svg.finish(), axis: across.name() })
}

fn across(trials: &[Vec<&Measured>]) -> Option<Across> {
    let length = |measured: &&Measured| measured.server.memory.last().map(|p| p.at.as_secs_f64());
    let lengths = || trials.iter().flatten().filter_map(length);
    let (shortest, longest) = (lengths().reduce(f64::min)?, lengths().reduce(f64::max)?);
    Some(if longest > shortest * COMPARABLE { Across::Share } else { Across::Seconds(longest) })
}

impl Across {
    fn axis(&self, svg: &mut Svg) {
        let (highest, unit) = match self {
            Self::Seconds(longest) => (*longest, " s"),
            Self::Share => (100.0, " %"),
        };
        let ticks = Scale::linear(highest, 5, 0.0, 1.0);
        for &tick in ticks.ticks().iter().filter(|tick| **tick <= highest * 1.001) {
            let x = AREA.left + tick / highest * (AREA.right - AREA.left);
            svg.line("tickmark", (x, AREA.bottom), (x, AREA.bottom + 5.0));
            let tick = (tick * 1e6).round() / 1e6;
            svg.text("tick middle", (x, AREA.bottom + 22.0), &format!("{tick}{unit}"));
        }
    }

    fn place(&self, at: f64, lasted: f64) -> f64 {
        let share = match self {
            Self::Seconds(longest) => at / longest.max(1e-9),
            Self::Share => at / lasted.max(1e-9),
        };
        AREA.left + share * (AREA.right - AREA.left)
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Seconds(_) => "seconds since the load began",
            Self::Share => "share of the load done, since the trials differ much in length",
        }
    }
}
