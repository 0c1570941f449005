//! Parses sizes such as `1024`, `8k`, `1MiB`, `10m` and `2GB`.

/// Parses a number of bytes with or without a unit.
///
/// `k`, `m` and `g` are powers of 1024 as in nginx and Apache. `KiB`, `MiB` and `GiB` are also
/// powers of 1024; `kB`, `MB` and `GB` are powers of 1000. Case does not matter. The error
/// completes a sentence, such as "does not begin with a number".
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("does not begin with a number".into());
    }
    let unit = unit.trim_start();
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(format!("has an unknown unit \"{unit}\"")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.filter(|&bytes| bytes <= LARGEST).ok_or_else(|| "is more than 8 EiB".into())
}

/// The largest accepted size in bytes: the largest file offset.
const LARGEST: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_type() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("8k", 8192),
            ("8K", 8192),
            ("10m", 10 << 20),
            ("1MiB", 1 << 20),
            ("1 MiB", 1 << 20),
            ("2GB", 2_000_000_000),
            ("12b", 12),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "k", "-1", "1.5m", "1tb", "1 k k", "99999999999g", "0x10", "1_000"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size(&"9".repeat(400)).is_err());
    }
}
