//! Names of entries.

use crate::StoreError;

/// Longest name.
const LONGEST: usize = 512;

/// Returns the name if it is valid, such as `acme/lock-1`. If the store is a directory, names are
/// paths below this directory. Other names are an error, for example `a//b` or `../a`.
pub fn checked(name: &str) -> Result<&str, StoreError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_part = |part: &str| {
        !part.is_empty()
            && part.len() <= 200
            && !part.starts_with('.')
            && part.chars().all(is_plain)
    };
    if name.len() <= LONGEST && name.split('/').all(is_part) {
        return Ok(name);
    }
    Err(StoreError::Refused(format!(
        "{:?} is no name of an entry",
        name.escape_debug().to_string()
    )))
}

/// Returns a name for this process that no other process of any machine has.
pub fn of_this_process() -> String {
    let mut bytes = [0; 16];
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        fastrand::fill(&mut bytes);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_directory() {
        for name in ["a", "acme/ca.example_14000_dir/a.example-0f.pem"] {
            assert!(checked(name).is_ok(), "{name}");
        }
        let long = "a/".repeat(300);
        for name in ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a\nb", "a b", "ä", &*long] {
            assert!(checked(name).is_err(), "{name}");
        }
    }
}
