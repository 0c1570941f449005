//! An experiment without a file: servers that run, and commands that start servers.

use std::path::Path;

use forebay_lab::Plan;

/// A first answer within a minute: so long is measured in all, beside starts and warm-ups.
const MEASURED_MS: u64 = 36_000;
const ROUNDS: u64 = 6;
/// Longer trials need more patience than they are worth, shorter ones have too few slices.
const LONGEST_MS: u64 = 3000;
const SHORTEST_MS: u64 = 750;

/// The plan, or what is wrong with what was given.
pub fn plan(
    urls: &[String],
    commands: &[String],
    path: &str,
    against_itself: bool,
) -> Result<Plan, String> {
    let count = urls.len() + commands.len();
    if count < 2 && !against_itself {
        return Err(
            "error: there is nothing to compare it with: give --url or --cmd twice, or --aa \
                    to see how much one server differs from itself"
                .to_owned(),
        );
    }
    let each = MEASURED_MS / ROUNDS / count.max(2) as u64;
    let mut text = format!(
        "title = \"Comparison\"\n[load]\nrounds = {ROUNDS}\nwarmup = \"500ms\"\n\
         duration = \"{}ms\"\npath = {}\n",
        each.clamp(SHORTEST_MS, LONGEST_MS),
        quoted(path)
    );
    for (name, url) in distinct(urls).iter().zip(urls) {
        text += &format!(
            "[[configuration]]\nname = {}\nurl = {}\nready_timeout = \"5s\"\n",
            quoted(name),
            quoted(url)
        );
    }
    for (name, command) in distinct(commands).iter().zip(commands) {
        text += &format!(
            "[[configuration]]\nname = {}\nurl = \"http://127.0.0.1:{{port}}\"\n\
             start = [\"sh\", \"-c\", {}]\nenv = {{ PORT = \"{{port}}\" }}\n",
            quoted(name),
            quoted(command)
        );
    }
    let mut plan = Plan::parse(Path::new("command-line"), &text)
        .map_err(|problem| format!("error: {}", problem.plain()))?;
    // What follows the host of a URL is its own.
    plan.configurations[..urls.len()].iter_mut().for_each(|each| each.path = Some(String::new()));
    Ok(plan)
}

/// Names for what was given: itself, with a number where it was given before.
fn distinct(given: &[String]) -> Vec<String> {
    let name = |(index, text): (usize, &String)| {
        let before = given[..index].iter().filter(|other| *other == text).count();
        if before == 0 {
            text.trim().to_owned()
        } else {
            format!("{} ({})", text.trim(), before + 1)
        }
    };
    given.iter().enumerate().map(name).collect()
}

/// As a string of TOML, which takes all that JSON escapes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_lab::Amount;

    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn servers_that_run_are_asked_for_what_their_urls_say() {
        let plan = plan(&texts(&["http://h:1/a?b", "http://h:2/c/"]), &[], "/", false).unwrap();
        let [one, two] = plan.configurations.as_slice() else { panic!("{plan:?}") };
        assert!(one.start.is_empty() && one.baseline);
        assert_eq!((one.url.as_str(), one.path.as_deref()), ("http://h:1/a?b", Some("")));
        assert_eq!(two.name, "http://h:2/c/");
        assert_eq!(plan.load.amount, Amount::Duration(Duration::from_secs(3)));
    }

    #[test]
    fn commands_are_run_by_a_shell_whatever_is_in_them() {
        let command = "x \"$PORT\" '{port}' \\\\ # {dir}";
        let plan = plan(&[], &texts(&[command, command]), "/p", false).unwrap();
        assert_eq!(plan.configurations[0].start, ["sh", "-c", command]);
        assert_eq!(plan.configurations[1].name, format!("{command} (2)"));
        assert_eq!(plan.load.path, "/p");
    }

    #[test]
    fn one_alone_is_compared_with_itself_or_not_at_all() {
        assert!(plan(&texts(&["http://h/"]), &[], "/", false).unwrap_err().contains("--aa"));
        assert!(plan(&texts(&["http://h/"]), &[], "/", true).is_ok());
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let wrong = plan(&texts(&["h:1", "http://h/"]), &[], "/", false).unwrap_err();
        assert!(wrong.contains("not a URL"), "{wrong}");
    }
}
