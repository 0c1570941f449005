//! Placeholders `{port}`, `{dir}` and `{tmp}`, and the placeholders of services. Their values
//! differ between trials or machines.

/// Values of the placeholders of one trial.
#[derive(Clone, Debug)]
pub struct Values {
    /// Port that was free when the trial began.
    pub port: u16,
    /// Absolute directory of the experiment file.
    pub dir: String,
    /// Temporary directory of the trial.
    pub tmp: String,
    /// Values for the placeholders of the services that run in the trial.
    pub services: Vec<ServiceValues>,
}

/// Values of a service's placeholders: `{NAME.port}` and `{NAME.tmp}`.
#[derive(Clone, Debug)]
pub struct ServiceValues {
    /// Name of the service.
    pub name: String,
    /// Port of the service.
    pub port: u16,
    /// Temporary directory of the service.
    pub tmp: String,
}

impl Values {
    /// Replaces the placeholders in `text`. Other text in braces stays unchanged, because a start
    /// command may be a shell or awk script with many braces.
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
