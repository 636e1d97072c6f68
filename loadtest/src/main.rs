//! `kvlane-load`: load in real time (`run`) and in virtual time (`simulate`).

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::{Run, Simulate};

#[derive(Debug, Parser)]
#[command(name = "kvlane-load", version, about = "Multi-turn load for KV-aware routing")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keeps conversations going at an OpenAI-compatible endpoint and measures what its clients see
    Run(Run),
    /// Runs a deployment in virtual time: engines, events, index, decision. All figures are simulated.
    Simulate(Simulate),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let done = match command {
        Command::Run(arguments) => commands::run(&arguments),
        Command::Simulate(arguments) => commands::simulate(&arguments).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        // The whole chain of causes, in one line.
        eprintln!("kvlane-load: {error:#}");
        ExitCode::from(2)
    })
}
