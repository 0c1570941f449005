//! The `forebay` command: subcommands, and exit codes that they share.
#![forbid(unsafe_code)]

mod bench;
mod body_file;
mod check;
mod compare;
mod completions;
mod ctl;
mod doctor;
mod explain;
mod import;
mod init;
mod junit;
mod man;
mod merge;
mod prove;
mod serve;
mod test_server;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
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
    Prove(prove::ProveArgs),
    Ctl(ctl::CtlArgs),
    Import(import::ImportArgs),
    Bench(Box<bench::BenchArgs>),
    Merge(merge::MergeArgs),
    Compare(compare::CompareArgs),
    Init(init::InitArgs),
    Doctor(doctor::DoctorArgs),
    Man(man::ManArgs),
    Completions(completions::CompletionsArgs),
}

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
        _ => {}
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
        Verb::Prove(args) => prove::run(&args),
        Verb::Ctl(args) => ctl::run(&args),
        Verb::Import(args) => import::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Merge(args) => merge::run(&args),
        Verb::Compare(args) => compare::run(args),
        Verb::Init(args) => init::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Man(args) => man::run(&args, Cli::command()),
        Verb::Completions(args) => completions::run(&args, Cli::command()),
    }
}
