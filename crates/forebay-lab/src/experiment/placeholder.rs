//! `{port}`, `{dir}` and `{tmp}`: what differs from trial to trial or from machine to machine.

/// The values of one trial.
#[derive(Clone, Debug)]
pub struct Values {
    /// A port that was free when the trial began.
    pub port: u16,
    /// The experiment file's directory, absolute.
    pub dir: String,
    /// The trial's own temporary directory.
    pub tmp: String,
}

impl Values {
    /// Fills in the placeholders of `text`. Other braces are left alone: a start command may be a
    /// shell or awk script full of them.
    pub fn fill(&self, text: &str) -> String {
        text.replace("{port}", &self.port.to_string())
            .replace("{dir}", &self.dir)
            .replace("{tmp}", &self.tmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_is_filled_and_other_braces_stay() {
        let values = Values { port: 8000, dir: "/d".into(), tmp: "/t".into() };
        assert_eq!(
            values.fill("{port}:{port} {dir}/{tmp} {print $1} {}"),
            "8000:8000 /d//t {print $1} {}"
        );
    }
}
