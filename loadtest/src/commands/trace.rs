//! `kvlane-load trace`: makes traces, and tells what they are like.

use std::path::PathBuf;

use anyhow::ensure;
use kvlane_loadtest::trace::{self, HASH_TOKENS, Recipe, Trace};

use super::levels::range;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum TraceCommand {
    /// Makes up a trace in Mooncake's form: conversations over documents that some share
    Make(Make),
    /// Tells what a trace is like: its size, and how much of it could be cached
    Stats(Stats),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Make {
    /// Where it goes
    out: PathBuf,
    #[arg(long, default_value_t = 1000)]
    requests: usize,
    /// Conversations that begin each second
    #[arg(long, default_value_t = 1.0, value_name = "PER_S")]
    rate: f64,
    #[arg(long, default_value = "3-5")]
    turns: String,
    /// Documents that conversations share
    #[arg(long, default_value_t = 10)]
    groups: usize,
    /// How unevenly they are asked about: Zipf's exponent, 0 for equally
    #[arg(long, default_value_t = 0.0)]
    zipf: f64,
    /// Tokens of a first prompt
    #[arg(long, default_value = "3500-4000")]
    tokens: String,
    /// Share of it that is the document's
    #[arg(long, default_value_t = 0.9)]
    ratio: f64,
    /// Tokens of an answer
    #[arg(long, default_value = "600-1024")]
    output: String,
    /// Mean seconds between an answer and the next question
    #[arg(long, default_value_t = 5.0)]
    think: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    file: PathBuf,
    /// Tokens that one of its names stands for
    #[arg(long, default_value_t = HASH_TOKENS)]
    block_tokens: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn trace(command: &TraceCommand) -> anyhow::Result<()> {
    match command {
        TraceCommand::Make(arguments) => make(arguments),
        TraceCommand::Stats(arguments) => stats(arguments),
    }
}

fn make(arguments: &Make) -> anyhow::Result<()> {
    let (rate, think) = (arguments.rate, arguments.think);
    ensure!(rate > 0.0 && rate <= 1e5, "--rate is {rate}, expected more than 0, at most 100000");
    ensure!((0.0..=1e6).contains(&think), "--think is {think}, expected 0 to 1000000");
    ensure!((0.0..=1.0).contains(&arguments.ratio), "--ratio is {}, expected 0 to 1", arguments.ratio);
    ensure!((0.0..=10.0).contains(&arguments.zipf), "--zipf is {}, expected 0 to 10", arguments.zipf);
    for (name, value, least, most) in
        [("--requests", arguments.requests, 2, 10_000_000), ("--groups", arguments.groups, 1, 100_000)]
    {
        ensure!((least..=most).contains(&value), "{name} is {value}, expected {least} to {most}");
    }
    let recipe = Recipe {
        requests: arguments.requests,
        conversations_per_s: arguments.rate,
        turns: range(&arguments.turns, "--turns")?,
        groups: arguments.groups,
        zipf: arguments.zipf,
        prompt_tokens: range(&arguments.tokens, "--tokens")?,
        shared: arguments.ratio,
        output_tokens: range(&arguments.output, "--output")?,
        think_s: arguments.think,
        seed: arguments.seed,
    };
    let made = trace::make(&recipe);
    made.write(&arguments.out)?;
    eprintln!(
        "wrote {}: {} requests over {:.0} s",
        arguments.out.display(),
        made.requests.len(),
        made.seconds()
    );
    Ok(())
}

fn stats(arguments: &Stats) -> anyhow::Result<()> {
    ensure!(arguments.block_tokens > 0, "--block-tokens is 0, expected 1 or more");
    let found = trace::stats(&Trace::read(&arguments.file)?, arguments.block_tokens);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    println!("{} requests over {:.0} s, {:.2}/s", found.requests, found.seconds, found.requests_per_s);
    for (name, of) in [("input tokens", found.input_tokens), ("output tokens", found.output_tokens)] {
        println!("{name}: mean {:.0}, p50 {}, p95 {}, max {}", of.mean, of.p50, of.p95, of.max);
    }
    println!("{} stretches of prompt, {} of them different", found.blocks, found.distinct_blocks);
    println!("{:.1} % of prompt tokens could be found in one endless cache", found.cacheable_pct);
    println!(
        "{:.1} % of requests have three quarters of their prompt from earlier ones",
        found.continuing_pct
    );
    println!("{:.1} % of stretches belong to the most used hundredth", found.hottest_hundredth_pct);
    Ok(())
}
