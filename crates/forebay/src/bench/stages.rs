//! Option `--stages`: changes of the load over time.

use forebay_load::{Ramp, RampStage};

use super::{duration, number};

/// Parses `TIME:TARGET`, such as `30s:100`.
pub fn parse(text: &str) -> Result<RampStage, String> {
    let wrong = || format!("{text:?} is no stage: write TIME:TARGET, such as 30s:100");
    let (time, target) = text.split_once(':').ok_or_else(wrong)?;
    Ok(RampStage { time: duration::parse(time)?, target: number::rate(target)? })
}

/// Returns a ramp of the rate, from `rate` through the targets of the stages. If `rate` is `None`,
/// returns a ramp of the number of connections, from `connections`.
pub fn ramp(
    stages: &[RampStage],
    rate: Option<f64>,
    connections: Option<usize>,
) -> Result<Ramp, String> {
    if rate.is_none()
        && let Some(stage) = stages.iter().find(|stage| stage.target.fract() != 0.0)
    {
        return Err(format!(
            "--stages: {} is no number of connections: write a whole number, or add -r for rates",
            stage.target
        ));
    }
    let from = rate.unwrap_or(connections.unwrap_or(0) as f64);
    Ok(Ramp { from, stages: stages.to_vec() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stages_are_times_and_targets() {
        let stage = |ms, target| Ok(RampStage { time: Duration::from_millis(ms), target });
        assert_eq!(parse("30s:100"), stage(30_000, 100.0));
        assert_eq!(parse("1.5m:2k"), stage(90_000, 2000.0));
        assert_eq!(parse("0:0.5"), stage(0, 0.5));
        for text in ["", "30s", ":5", "5:", "x:5", "5:x", "5:-1", "5:1:2", "-5:1", "5:nan", "5:inf"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
