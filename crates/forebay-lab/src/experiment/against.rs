//! Comparison of an experiment with an earlier revision of its file, or with saved results.

use super::{Configuration, Plan};

/// Returns true if both configurations have the same settings, including the value of `{dir}`.
/// Ignores name, notes, baseline, reference and saved date.
fn is_started_alike(now: &Configuration, then: &Configuration) -> bool {
    let like_now = Configuration {
        name: now.name.clone(),
        baseline: now.baseline,
        notes: now.notes.clone(),
        reference: now.reference.clone(),
        saved: now.saved.clone(),
        ..then.clone()
    };
    serde_json::to_value(now).ok() == serde_json::to_value(like_now).ok()
}

impl Plan {
    /// Adds configurations of `earlier` as references. For each current configuration `a`, the
    /// earlier configuration `a` becomes the reference, with the name `a (LABEL)`. Earlier
    /// configurations whose results came from a saved report are ignored.
    ///
    /// Returns the names of the configurations that have the same settings in `earlier`. For these
    /// configurations, adds no configuration of `earlier`, because the caller may use saved results
    /// instead.
    ///
    /// # Errors
    /// Fails if no configuration has the same name in `earlier`.
    pub fn compare_with(&mut self, earlier: &Plan, label: &str) -> Result<Vec<String>, String> {
        let mut unchanged = Vec::new();
        let mut found = Vec::new();
        for configuration in &mut self.configurations {
            let then = earlier.configurations.iter().find(|then| then.name == configuration.name);
            let Some(then) = then.filter(|then| then.saved.is_none()) else { continue };
            let name = format!("{} ({label})", configuration.name);
            configuration.reference = Some(name.clone());
            if is_started_alike(configuration, then) {
                unchanged.push(configuration.name.clone());
                continue;
            }
            let twin = Configuration { name, baseline: false, reference: None, ..then.clone() };
            found.push(Configuration { isolated: configuration.isolated, ..twin });
        }
        if found.is_empty() && unchanged.is_empty() {
            let names: Vec<&str> = earlier.configurations.iter().map(|c| c.name.as_str()).collect();
            return Err(format!("no configuration has the same name there: {}", names.join(", ")));
        }
        self.configurations.append(&mut found);
        Ok(unchanged)
    }
}
