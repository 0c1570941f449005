//! `{port}`, `{dir}`, `{tmp}` and those of services: what differs from trial to trial or from machine to machine.

/// The values of one trial.
#[derive(Clone, Debug)]
pub struct Values {
    /// A port that was free when the trial began.
    pub port: u16,
    /// The experiment file's directory, absolute.
    pub dir: String,
    /// The trial's own temporary directory.
    pub tmp: String,
    /// The services that run beside it.
    pub services: Vec<ServiceValues>,
}

/// Where a service of the trial is: `{NAME.port}` and `{NAME.tmp}`.
#[derive(Clone, Debug)]
pub struct ServiceValues {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u16,
    /// Its own temporary directory.
    pub tmp: String,
}

impl Values {
    /// Fills in the placeholders of `text`. Other braces are left alone: a start command may be a
    /// shell or awk script full of them.
    pub fn fill(&self, text: &str) -> String {
        let own = text
            .replace("{port}", &self.port.to_string())
            .replace("{dir}", &self.dir)
            .replace("{tmp}", &self.tmp);
        self.services.iter().fold(own, |text, service| {
            let ServiceValues { name, port, tmp } = service;
            text.replace(&format!("{{{name}.port}}"), &port.to_string())
                .replace(&format!("{{{name}.tmp}}"), tmp)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_is_filled_and_other_braces_stay() {
        let services = vec![ServiceValues { name: "db".into(), port: 5432, tmp: "/s".into() }];
        let values = Values { port: 8000, dir: "/d".into(), tmp: "/t".into(), services };
        assert_eq!(values.fill("{db.port} {db.tmp}/x {other.port}"), "5432 /s/x {other.port}");
        assert_eq!(
            values.fill("{port}:{port} {dir}/{tmp} {print $1} {}"),
            "8000:8000 /d//t {print $1} {}"
        );
    }
}
