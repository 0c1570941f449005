//! Translates times and sizes of nginx, Apache and Caddy to Forebay's units.

/// Translates a time such as `1d`, `1y 6M` or `90` (seconds). Returns `None` for other texts.
pub fn duration(text: &str) -> Option<String> {
    let mut total: u64 = 0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let unit: u64 = match &after[..letters] {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(unit)?)?;
        rest = after[letters..].trim_start();
    }
    // Ten years are enough for every cache and every connection, so longer times become ten years.
    Some(written(total.min(3650 * 86_400_000)))
}

fn written(milliseconds: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let whole = |(size, _): &&(u64, &str)| milliseconds > 0 && milliseconds.is_multiple_of(*size);
    match units.iter().find(whole) {
        Some((size, unit)) => format!("{}{unit}", milliseconds / size),
        None if milliseconds == 0 => "0s".into(),
        None => format!("{milliseconds}ms"),
    }
}

/// Translates a size such as `8k`, `1m` or `1024` (bytes). Returns `None` for other texts.
pub fn size(text: &str) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => "",
        "k" | "kb" | "kib" => "KiB",
        "m" | "mb" | "mib" => "MiB",
        "g" | "gb" | "gib" => "GiB",
        _ => return None,
    };
    (number < 1 << 40).then(|| if number == 0 { "0".into() } else { format!("{number}{unit}") })
}

/// Returns the bytes of a size such as `8k` of nginx. Returns `None` for other texts.
pub fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// Returns the bytes of a size such as `10MB` of Caddy, where MB is a power of ten. Returns `None`
/// for other texts, and from 1 TiB.
pub fn decimal_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit).filter(|all| *all < 1 << 40)
}

/// Returns true if Forebay accepts the text as a pattern of media types.
pub fn is_media_type(text: &str) -> bool {
    forebay_conf::MediaPattern::parse(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        for (text, time) in [
            ("30d", "30d"),
            ("90", "90s"),
            ("1h 30m", "90m"),
            ("1M", "30d"),
            ("500ms", "500ms"),
            ("0", "0s"),
            ("99999y", "3650d"),
        ] {
            assert_eq!(duration(text).as_deref(), Some(time), "{text}");
        }
        assert_eq!(duration("$x"), None);
        assert_eq!(duration("99999999999999999999s"), None);
        assert_eq!(size("8m").as_deref(), Some("8MiB"));
        assert_eq!(size("x"), None);
    }
}
