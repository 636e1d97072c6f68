//! `kvlane-load`: load in real time and in virtual time, and what came of it.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::{
    BenchProxy, Calibrate, Chaos, Compare, Demo, Faults, Report, Run, Serve, Simulate, Soak, Sweep,
    TraceCommand,
};

#[derive(Debug, Parser)]
#[command(name = "kvlane-load", version, about = "Multi-turn load for KV-aware routing")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keeps conversations going at an OpenAI-compatible endpoint and measures what its clients see
    Run(Box<Run>),
    /// Measures levels, modes and repeats, and says how far the objective holds
    Sweep(Box<Sweep>),
    /// Runs a deployment in virtual time: engines, events, index, decision. All figures are simulated.
    Simulate(Box<Simulate>),
    /// Fits a simulated engine to a real one's log of its steps, for `simulate --engine`
    Calibrate(Box<Calibrate>),
    /// Has everything go wrong in virtual time, seed by seed, and says whether what must hold did
    Faults(Faults),
    /// Compares two runs or two modes: differences with confidence intervals
    Compare(Compare),
    /// Makes a page, tables and reference lines of a sweep
    Report(Report),
    /// Opens the page over a router that is there already: starts, stops and changes load, and shows what comes of it
    Serve(Box<Serve>),
    /// Starts simulated engines, a router, load and the page, all in one
    Demo(Demo),
    /// Kills engines, bridges, NATS and routers while conversations run, and counts what clients see of it
    Chaos(Box<Chaos>),
    /// Keeps a steady load on routers while engines come and go, and says whether anything grows
    Soak(Box<Soak>),
    /// Measures what routers cost by themselves, side by side: processor time, added latency, memory
    BenchProxy(Box<BenchProxy>),
    /// Makes traces and tells what they are like
    #[command(subcommand)]
    Trace(TraceCommand),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let success = |()| ExitCode::SUCCESS;
    let done = match command {
        Command::Run(arguments) => commands::run(&arguments),
        Command::Sweep(arguments) => commands::sweep(&arguments),
        Command::Simulate(arguments) => commands::simulate(&arguments).map(success),
        Command::Calibrate(arguments) => commands::calibrate(&arguments).map(success),
        Command::Faults(arguments) => commands::faults(&arguments),
        Command::Compare(arguments) => commands::compare(&arguments).map(success),
        Command::Report(arguments) => commands::report(&arguments).map(success),
        Command::Serve(arguments) => commands::serve(&arguments),
        Command::Demo(arguments) => commands::demo(&arguments),
        Command::Chaos(arguments) => commands::chaos(&arguments),
        Command::Soak(arguments) => commands::soak(&arguments),
        Command::BenchProxy(arguments) => commands::bench_proxy(&arguments).map(success),
        Command::Trace(command) => commands::trace(&command).map(success),
    };
    done.unwrap_or_else(|error| {
        // The whole chain of causes, in one line.
        eprintln!("kvlane-load: {error:#}");
        ExitCode::from(2)
    })
}
