//! Changes to the field lines of a reply.

/// Changes to field lines.
#[derive(Clone, Debug, Default)]
pub struct FieldChanges {
    /// Field lines to add, each ending in CRLF.
    pub add: Vec<u8>,
    /// Field lines to add unless the reply has a field of the same name.
    pub add_missing: Vec<u8>,
    /// Names of fields to remove, in lower case.
    pub remove: Vec<String>,
}

impl FieldChanges {
    /// Removes the fields named in `remove` from `out`, from `start` on.
    pub(crate) fn remove_from(&self, out: &mut Vec<u8>, start: usize) {
        if self.remove.is_empty() {
            return;
        }
        let lines = out.split_off(start);
        for line in lines.split_inclusive(|&b| b == b'\n') {
            let name = line.split(|&b| b == b':').next().unwrap_or_default();
            if !self.remove.iter().any(|n| n.as_bytes().eq_ignore_ascii_case(name)) {
                out.extend_from_slice(line);
            }
        }
    }
}
