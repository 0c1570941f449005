//! The difference of two configurations: what a reload would change.

use std::collections::BTreeSet;

use forebay_conf::Setting;

/// The difference of two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The changes in words, one a line.
    pub lines: Vec<String>,
    /// Applications whose processes would be replaced.
    pub restarted: Vec<String>,
}

/// Keys of `[server]` that change only with a restart of Forebay.
const FIXED: [&str; 9] = [
    "threads",
    "affinity",
    "admin",
    "admin_mode",
    "admin_group",
    "admin_hosts",
    "admin_token",
    "user",
    "group",
];

impl Difference {
    /// Returns the changes from the running configuration `now` to the configuration `next`.
    pub fn of(now: &[Setting], next: &[Setting]) -> Self {
        let mut difference = Self::default();
        let (before, after) = (parts(now), parts(next));
        for part in &before {
            if after.contains(part) {
                difference.compare(part, now, next);
            } else {
                difference.lines.push(format!("- {part}"));
            }
        }
        for part in after.iter().filter(|part| !before.contains(part)) {
            difference.lines.push(format!("+ {part}"));
            for setting in next.iter().filter(|setting| setting.part == **part) {
                difference.lines.push(format!("    + {} = {}", setting.key, setting.shown));
            }
        }
        // Report a change of the order, because the order decides which site or route answers.
        let common = |all: &[&str], other: &[&str]| {
            let of_sites = all.iter().filter(|part| part.starts_with("site "));
            of_sites
                .filter(|part| other.contains(part))
                .map(|p| (*p).to_owned())
                .collect::<Vec<_>>()
        };
        if common(&before, &after) != common(&after, &before) {
            difference.lines.push("~ sites or routes change their order".to_owned());
        }
        difference
    }

    /// Adds the changes of `part`, such as `server` or `app shop`. Both configurations have this
    /// part.
    fn compare(&mut self, part: &str, now: &[Setting], next: &[Setting]) {
        let of = |all: &[Setting]| {
            all.iter().filter(|setting| setting.part == part).cloned().collect::<Vec<_>>()
        };
        let (now, next) = (of(now), of(next));
        let keys: BTreeSet<_> =
            now.iter().chain(&next).map(|setting| setting.key.clone()).collect();
        let mut changes = Vec::new();
        for key in keys {
            let find = |all: &[Setting]| all.iter().find(|setting| setting.key == key).cloned();
            let (before, after) = (find(&now), find(&next));
            let value = |setting: &Option<Setting>| setting.as_ref().map(|s| s.value.clone());
            if value(&before) == value(&after) {
                continue;
            }
            let note = if part == "server" && FIXED.contains(&&*key) {
                " (needs a restart of Forebay)"
            } else {
                ""
            };
            match (before, after) {
                (Some(before), Some(after)) if before.shown == after.shown => {
                    changes.push(format!("    ~ {key}: a hidden value changes{note}"));
                }
                (before, after) => {
                    changes.extend(before.map(|s| format!("    - {key} = {}{note}", s.shown)));
                    changes.extend(after.map(|s| format!("    + {key} = {}{note}", s.shown)));
                }
            }
        }
        if changes.is_empty() {
            return;
        }
        let app = part.strip_prefix("app ");
        self.restarted.extend(app.map(str::to_owned));
        let note = if app.is_some() { " (its processes are replaced)" } else { "" };
        self.lines.push(format!("~ {part}{note}"));
        self.lines.append(&mut changes);
    }

    /// Returns the difference as text.
    pub fn text(&self) -> String {
        if self.lines.is_empty() {
            return "no difference\n".to_owned();
        }
        let lines = self.lines.iter().map(|line| format!("{line}\n"));
        lines.collect()
    }
}

/// Returns the names of all parts, in the order of the configuration.
fn parts(settings: &[Setting]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let parts = settings.iter().map(|setting| setting.part.as_str());
    parts.filter(|part| seen.insert(*part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Vec<Setting> {
        let plan = forebay_conf::parse(text, "site.toml", std::path::Path::new("/")).unwrap();
        plan.file.settings()
    }

    const SITE: &str = "[server]\nadmin = \":9\"\nadmin_token = \"0123456789abcdefgh\"\n\
        [app.a]\nkind = \"command\"\nrun = [\"x\", \"{port}\"]\nspeaks = \"http\"\nenv = { A = \"geheim\" }\n\
        [[site]]\nlisten = \":80\"\nhosts = [\"h\"]\n[[site.route]]\npath = \"/a\"\napp = \"a\"\n\
        [[site.route]]\npath = \"/b\"\nrespond = \"b\"\n";

    #[test]
    fn changes_are_named_and_secrets_are_not() {
        let now = settings(SITE);
        assert_eq!(Difference::of(&now, &now), Difference::default());
        let next = SITE
            .replace("geheim", "anderes")
            .replace("admin = \":9\"", "admin = \":8\"")
            .replace("\"b\"\n", "\"c\"\n[[site.route]]\npath = \"/n\"\nrespond = \"n\"\n");
        let difference = Difference::of(&now, &settings(&next));
        let expected = [
            "~ app a (its processes are replaced)",
            "    ~ env.A: a hidden value changes",
            "~ server",
            "    - admin = \":9\" (needs a restart of Forebay)",
            "    + admin = \":8\" (needs a restart of Forebay)",
            "~ site h, route /b",
            "    - respond = \"b\"",
            "    + respond = \"c\"",
            "+ site h, route /n",
            "    + path = \"/n\"",
            "    + respond = \"n\"",
        ];
        assert_eq!(difference.lines, expected);
        assert_eq!(difference.restarted, ["a"]);
        let removed = Difference::of(&settings(&next), &now);
        assert!(removed.lines.contains(&"- site h, route /n".to_owned()), "{removed:?}");
        let moved = SITE.replace("/a\"\napp = \"a\"", "/b\"\nrespond = \"b\"");
        let moved = moved.replacen(
            "/b\"\nrespond = \"b\"\n[[site.route]]\npath = \"/b\"\nrespond = \"b\"",
            "/b\"\nrespond = \"b\"\n[[site.route]]\npath = \"/a\"\napp = \"a\"",
            1,
        );
        let lines = Difference::of(&now, &settings(&moved)).lines;
        assert_eq!(lines, ["~ sites or routes change their order"]);
    }
}
