//! An experiment beside what it was before: another revision of it, or results that were saved.

use super::{Configuration, Plan};

/// What has to be equal for a saved configuration to be the same as now; what stands beside it says where
/// it comes from, or is only words.
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
    /// Adds to each configuration what was called so in `earlier`, named after `label`, and has the two
    /// compared. Returns the names of those that `earlier` has but that are started as they are now:
    /// running them again would compare a server with itself.
    ///
    /// # Errors
    /// `earlier` has none of the configurations.
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
