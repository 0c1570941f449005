//! Experiment from options instead of a file: URLs of servers that already run, and commands that
//! start servers.

use std::path::Path;

use forebay_lab::Plan;

/// Total time of measurement in milliseconds, without starts and warm-ups. With up to six servers,
/// the first result takes less than a minute.
const MEASURED_MS: u64 = 36_000;
const ROUNDS: u64 = 12;
/// Maximum and minimum duration of a trial in milliseconds. Longer trials delay the first result,
/// and shorter ones have too few slices.
const LONGEST_MS: u64 = 1500;
const SHORTEST_MS: u64 = 500;

/// Returns the plan for the URLs and commands of the command line.
pub fn plan(
    urls: &[String],
    commands: &[String],
    path: &str,
    against_itself: bool,
) -> Result<Plan, String> {
    let count = urls.len() + commands.len();
    if count < 2 && !against_itself {
        return Err("error: nothing to compare with: give --url or --cmd twice, or --aa \
                    to see the difference of one server from itself"
            .to_owned());
    }
    let each = MEASURED_MS / ROUNDS / count.max(2) as u64;
    let mut text = format!(
        "title = \"Comparison\"\n[load]\nrounds = {ROUNDS}\nwarmup = \"300ms\"\nslice = \"50ms\"\n\
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
    // The URLs of the command line already contain their paths, so append no path to them.
    plan.configurations[..urls.len()].iter_mut().for_each(|each| each.path = Some(String::new()));
    Ok(plan)
}

/// Returns a different name for each argument. The name is the argument's text, with a number if an
/// earlier argument has the same text.
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

/// Quotes text as a TOML string. TOML accepts all escapes of JSON.
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
        assert_eq!(plan.load.amount, Amount::Duration(Duration::from_millis(1500)));
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
    fn invalid_urls_are_refused() {
        let wrong = plan(&texts(&["h:1", "http://h/"]), &[], "/", false).unwrap_err();
        assert!(wrong.contains("not a URL"), "{wrong}");
    }
}
