//! The `forebay` command: subcommands, and exit codes that they share.
#![forbid(unsafe_code)]

#[cfg(feature = "bench")]
mod bench;
mod body_file;
mod check;
#[cfg(feature = "compare")]
mod compare;
mod ctl;
mod doctor;
mod explain;
#[cfg(feature = "import")]
mod import;
#[cfg(feature = "import")]
mod init;
#[cfg(feature = "bench")]
mod junit;
#[cfg(feature = "manual")]
mod man;
#[cfg(feature = "bench")]
mod merge;
#[cfg(feature = "bench")]
mod prove;
mod serve;
mod test_server;

use std::process::ExitCode;

#[cfg(feature = "manual")]
use clap::CommandFactory;
use clap::{Parser, Subcommand};
use forebay_net::handover::launcher::{LISTEN_VERB, READ_VERB};
use forebay_net::sys::keep_from_programs;

/// A front server for web applications of any age, with a tool to measure it.
#[derive(Parser)]
#[command(name = "forebay", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Serve(serve::ServeArgs),
    Check(check::CheckArgs),
    Explain(explain::ExplainArgs),
    #[cfg(feature = "bench")]
    Prove(prove::ProveArgs),
    Ctl(ctl::CtlArgs),
    #[cfg(feature = "import")]
    Import(import::ImportArgs),
    #[cfg(feature = "bench")]
    Bench(Box<bench::BenchArgs>),
    #[cfg(feature = "bench")]
    Merge(merge::MergeArgs),
    #[cfg(feature = "compare")]
    Compare(compare::CompareArgs),
    #[cfg(feature = "import")]
    Init(init::InitArgs),
    Doctor(doctor::DoctorArgs),
    #[cfg(feature = "manual")]
    Man(man::ManArgs),
    #[cfg(feature = "manual")]
    Completions(man::CompletionsArgs),
}

/// The features that this program was built without, and their subcommands.
const LEFT_OUT: &[(&str, &[&str])] = &[
    #[cfg(not(feature = "bench"))]
    ("bench", &["bench", "merge", "prove"]),
    #[cfg(not(feature = "compare"))]
    ("compare", &["compare"]),
    #[cfg(not(feature = "import"))]
    ("import", &["import", "init"]),
    #[cfg(not(feature = "manual"))]
    ("manual", &["man", "completions"]),
];

/// Exit code if a server could not be started or reached, or if output could not be written.
const CANNOT_WRITE: u8 = 3;

fn main() -> ExitCode {
    // Internal subcommands come first. Forebay uses them to start helper processes.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(verb) if verb == "__guardian" => return forebay_process::guard_program(arguments),
        Some(verb) if verb == "__launch" => {
            // Keep descriptors 0 to 3, which a worker process inherits.
            keep_from_programs(4);
            return forebay_process::launch(arguments);
        }
        Some(verb) if verb == forebay_process::HELPER => return forebay_process::help(arguments),
        Some(verb) if verb == forebay_process::ROOT => {
            // A descriptor that was left open must not reach the processes that it starts.
            keep_from_programs(3);
            return forebay_process::supervise_root();
        }
        Some(verb) if verb == "__metrics" => {
            // For `scripts/reference`.
            print!("{}", forebay_admin::metrics_json());
            return ExitCode::SUCCESS;
        }
        #[cfg(feature = "compare")]
        Some(verb) if verb == "__keeper" => return forebay_lab::keeper::keep(),
        Some(verb) if verb == forebay_net::log_opener::VERB => {
            return forebay_net::log_opener::open_log(arguments);
        }
        Some(verb) if verb == forebay_net::handover::launcher::VERB => {
            return forebay_net::handover::launcher::launch_successors(arguments);
        }
        Some(verb) if verb == READ_VERB || verb == LISTEN_VERB => {
            let arguments = std::iter::once("forebay".into()).chain(arguments);
            let Ok(Cli { verb: Verb::Serve(args) }) = Cli::try_parse_from(arguments) else {
                return ExitCode::FAILURE;
            };
            return if verb == READ_VERB {
                serve::read_for_reload(&args)
            } else {
                serve::listen_for_reload(&args)
            };
        }
        Some(verb) => {
            let left_out = LEFT_OUT.iter().find(|(_, verbs)| verbs.iter().any(|v| verb == *v));
            if let Some((feature, _)) = left_out {
                eprintln!(
                    "forebay: this program was built without `{feature}`: build it with \
                     `cargo build --release --features {feature}`, or install a package, which has all"
                );
                return ExitCode::from(2);
            }
        }
        None => {}
    }
    let verb = Cli::parse().verb;
    if !matches!(verb, Verb::Serve(_)) {
        // `serve` calls `keep_from_programs` itself, but first takes the sockets that a service
        // manager passes as descriptors 3 and above.
        keep_from_programs(3);
    }
    match verb {
        Verb::Serve(args) => serve::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Explain(args) => explain::run(args),
        #[cfg(feature = "bench")]
        Verb::Prove(args) => prove::run(&args),
        Verb::Ctl(args) => ctl::run(&args),
        #[cfg(feature = "import")]
        Verb::Import(args) => import::run(&args),
        #[cfg(feature = "bench")]
        Verb::Bench(args) => bench::run(&args),
        #[cfg(feature = "bench")]
        Verb::Merge(args) => merge::run(&args),
        #[cfg(feature = "compare")]
        Verb::Compare(args) => compare::run(args),
        #[cfg(feature = "import")]
        Verb::Init(args) => init::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "manual")]
        Verb::Man(args) => man::run(&args, Cli::command()),
        #[cfg(feature = "manual")]
        Verb::Completions(args) => man::run_completions(&args, Cli::command()),
    }
}
