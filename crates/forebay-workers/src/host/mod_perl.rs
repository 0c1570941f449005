//! The host and the command line of workers for handlers of mod_perl.

use std::fmt::Write;
use std::process::Command;

use super::Host;
use super::perl::{self, BOOTSTRAP};
use crate::spec::AppSpec;

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../hosts/mod-perl/", $name)))),*]
    };
}

/// The modules of mod_perl, with their names in %INC. Perl shows these names in messages.
const MODULES: [(&str, &str); 21] = modules![
    "ModPerl/Const.pm",
    "APR/Table.pm",
    "APR/Pool.pm",
    "APR/Const.pm",
    "Apache2/Const.pm",
    "ModPerl/Util.pm",
    "Apache2/Log.pm",
    "Apache2/ServerRec.pm",
    "Apache2/Connection.pm",
    "Apache2/RequestRec.pm",
    "Apache2/RequestIO.pm",
    "Apache2/RequestUtil.pm",
    "Apache2/Response.pm",
    "Apache2/Access.pm",
    "Apache2/URI.pm",
    "Apache2/Util.pm",
    "APR/Request.pm",
    "ModPerl/Registry.pm",
    "Forebay/Phases.pm",
    "Apache2/SubRequest.pm",
    "Forebay/ModPerl.pm",
];

/// Modules that are compiled when an application uses them.
const ON_DEMAND: [(&str, &str); 2] = modules!["Apache2/Filter.pm", "Apache2/compat.pm"];

/// Returns the host that loads the files and modules of `preload`, and follows `directives`.
pub(super) fn host(
    spec: &AppSpec,
    (preload, switches, directives): (&[String], &[String], &[Vec<String>]),
    parent: u32,
) -> Host {
    let mut command = Command::new("perl");
    command.args(switches);
    if let Some((_, lib)) = spec.env.iter().rfind(|(name, _)| name == "PERL5LIB") {
        // With -T, perl ignores the variable.
        command.args(lib.split(':').filter(|dir| !dir.is_empty()).map(|dir| format!("-I{dir}")));
    }
    command.args(["-e", BOOTSTRAP, &spec.name, &parent.to_string()]);
    let mut source = format!("{{\n{}\n}}\n", perl::PSGI_HOST);
    for (name, text) in MODULES {
        let text = compact(text);
        let _ = write!(
            source,
            "BEGIN {{ $INC{{'{name}'}} = '{name}';\n#line 1 \"{name}\"\n{text}\n}}\n"
        );
    }
    for (name, text) in ON_DEMAND {
        let text = list(&[compact(text)]);
        let _ = writeln!(source, "$Forebay::ModPerl::on_demand{{'{name}'}} = {text};");
    }
    let _ = writeln!(source, "Forebay::ModPerl::preload({});", list(preload));
    let names: Vec<String> = spec.env.iter().map(|(name, _)| name.clone()).collect();
    let _ = writeln!(source, "Forebay::ModPerl::configure('PerlSetEnv',{});", list(&names));
    for directive in directives {
        let _ = writeln!(source, "Forebay::ModPerl::configure({});", list(directive));
    }
    source.push_str("1;\n");
    Host::new(command, &source)
}

/// Returns a module without its comments and indentation, but with the same lines.
fn compact(text: &str) -> String {
    let line = |line: &str| match line.trim_start() {
        comment if comment.starts_with('#') => String::from("\n"),
        code => format!("{code}\n"),
    };
    text.lines().map(line).collect()
}

/// Returns the texts as a list of Perl.
fn list(texts: &[String]) -> String {
    let quoted = |text: &String| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    texts.iter().map(quoted).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{MODULES, ON_DEMAND, compact, list};
    use crate::host::perl;

    /// A longer message would wait for a process that does not run yet.
    #[test]
    fn the_host_fits_the_buffer_of_a_socket() {
        let all = MODULES.iter().chain(&ON_DEMAND);
        let length: usize = all.map(|(name, text)| 2 * name.len() + compact(text).len()).sum();
        assert!(perl::PSGI_HOST.len() + length < 160_000, "{length}");
    }

    #[test]
    fn texts_of_the_configuration_are_texts_of_perl() {
        let texts = ["a'b", "\\", "$x @y", "two\nlines"].map(str::to_owned);
        assert_eq!(list(&texts), "'a\\'b','\\\\','$x @y','two\nlines'");
    }
}
