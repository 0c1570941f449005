//! Formats figures with about three significant digits and a suitable unit.

use forebay_stat::{Latency, Ratio, Verdict};

/// Minimum number of latencies above a percentile. With fewer, the percentile depends on chance and
/// is not printed.
const FEWEST_BEYOND: u64 = 10;

/// Formats requests per second: `12,345`, `123`, `12.3`, `1.23`.
pub fn rate(value: f64) -> String {
    significant(value)
}

/// Formats a number with at least three digits and at most two decimals: `12,345`, `123`, `12.3`,
/// `1.23`.
pub fn significant(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 99.95 => count_signed(value.round() as i64),
        magnitude if magnitude >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a whole number with a comma after each group of thousands: `12,345`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a time given in microseconds: `850 µs`, `1.25 ms`, `2.10 s`.
pub fn time(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 999_500.0 => format!("{} ms", significant(us / 1e3)),
        us => format!("{} s", significant(us / 1e6)),
    }
}

/// Formats a percentile of the latencies. Returns `None` if there are too few latencies for this
/// percentile.
pub fn percentile(latency: &Latency, percent: f64) -> Option<String> {
    percentile_us(latency, percent).map(|us| time(us as f64))
}

/// Returns a percentile of the latencies in microseconds. Returns `None` if there are too few
/// latencies for this percentile.
pub fn percentile_us(latency: &Latency, percent: f64) -> Option<u64> {
    let enough = latency.samples_beyond(percent) >= FEWEST_BEYOND;
    enough.then(|| latency.percentile_us(percent))
}

/// Formats a size in bytes: `12 kB`, `3.4 MB` (powers of 1000).
pub fn size(bytes: f64) -> String {
    let (value, unit) = match bytes.abs() {
        magnitude if magnitude >= 999.5e6 => (bytes / 1e9, "GB"),
        magnitude if magnitude >= 999.5e3 => (bytes / 1e6, "MB"),
        magnitude if magnitude >= 999.5 => (bytes / 1e3, "kB"),
        _ => (bytes, "B"),
    };
    let digits = usize::from(value.abs() < 99.5 && unit != "B" && unit != "kB");
    format!("{value:.digits$} {unit}")
}

/// Formats a change in bytes, with its sign.
pub fn growth(bytes: f64) -> String {
    if bytes.abs() < 0.5 {
        return "0".to_owned();
    }
    let sign = if bytes > 0.0 { "+" } else { "−" };
    format!("{sign}{}", size(bytes.abs()))
}

/// Formats a ratio with its interval: `12.3x [11.8, 12.9]`. If the difference is not significant,
/// `~` replaces the ratio: `~ [0.98, 1.03]`. A ratio from a single round has no interval and is
/// formatted as `12.3x (one round)`.
pub fn ratio(ratio: &Ratio) -> String {
    if !ratio.has_interval() {
        return format!("{}x (one round)", factor(ratio.mean));
    }
    let interval = format!("[{}, {}]", factor(ratio.ci95[0]), factor(ratio.ci95[1]));
    match ratio.verdict() {
        Verdict::Same => format!("~ {interval}"),
        Verdict::Faster | Verdict::Slower => format!("{}x {interval}", factor(ratio.mean)),
    }
}

/// Formats a factor with three digits: `0.0983`, `0.983`, `1.23`, `12.3`, `123`. A factor outside
/// of 0.001 to 10,000 becomes `<0.001` or `>10,000`, because a few rounds cannot determine its
/// value. NaN becomes `?`.
pub fn factor(value: f64) -> String {
    match value {
        value if value.is_nan() => "?".to_owned(),
        value if value > 10_000.0 => ">10,000".to_owned(),
        value if value < 0.001 => "<0.001".to_owned(),
        value if value >= 99.95 => count_signed(value.round() as i64),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value >= 0.9995 => format!("{value:.2}"),
        value if value >= 0.09995 => format!("{value:.3}"),
        value => format!("{value:.4}"),
    }
}

fn count_signed(value: i64) -> String {
    let sign = if value < 0 { "−" } else { "" };
    format!("{sign}{}", count(value.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use forebay_stat::ratio_ci;

    use super::*;

    #[test]
    fn figures_have_three_digits_or_thousands() {
        let written: Vec<String> =
            [0.0, 1.234, 9.996, 12.34, 99.96, 1234.6, 1_234_567.0].map(significant).into();
        assert_eq!(written, ["0.00", "1.23", "10.0", "12.3", "100", "1,235", "1,234,567"]);
    }

    #[test]
    fn times_and_sizes_take_the_unit_that_fits() {
        let times: Vec<String> = [3.0, 999.6, 1250.0, 123_456.0, 2.1e6].map(time).into();
        assert_eq!(times, ["3 µs", "1.00 ms", "1.25 ms", "123 ms", "2.10 s"]);
        let sizes: Vec<String> = [12.0, 4096.0, 3.44e6, 250e6, 1.5e9].map(size).into();
        assert_eq!(sizes, ["12 B", "4 kB", "3.4 MB", "250 MB", "1.5 GB"]);
        assert_eq!(growth(-4096.0), "−4 kB");
        assert_eq!(growth(0.0), "0");
    }

    #[test]
    fn a_ratio_names_a_winner_only_if_the_interval_allows() {
        // The logarithms of the two rounds make the interval start at `low`.
        let of = |mean: f64, low: f64| {
            let spread = (mean.ln() - low.ln()) / forebay_stat::t_quantile(0.975, 1);
            let rounds = [mean.ln() - spread, mean.ln() + spread].map(|log| (log.exp(), 1.0));
            ratio(&ratio_ci(&rounds))
        };
        assert_eq!(of(12.34, 11.84), "12.3x [11.8, 12.9]");
        assert_eq!(of(0.5, 0.4), "0.500x [0.400, 0.625]");
        assert_eq!(of(1.01, 0.98), "~ [0.980, 1.04]");
        assert_eq!(of(1.01, 1.002), "~ [1.00, 1.02]");
        assert_eq!(of(1.0, 0.000_02), "~ [<0.001, >10,000]");
        let single = ratio_ci(&[(2.0, 1.0)]);
        assert_eq!(ratio(&single), "2.00x (one round)");
    }

    #[test]
    fn a_percentile_needs_ten_latencies_beyond_it() {
        let mut latency = Latency::new();
        (1..=999).for_each(|us| latency.record_us(us));
        assert_eq!(percentile(&latency, 99.0), None);
        latency.record_us(1000);
        assert_eq!(percentile(&latency, 99.0).as_deref(), Some("990 µs"));
    }
}
