//! `kvlane-load calibrate`: a simulated engine that takes as long as a real one.

use std::fmt::Write as _;
use std::io::{BufReader, stdin};
use std::path::PathBuf;

use anyhow::Context;
use kvlane_engine_adapters::sim::{Calibration, OutsideDelay};
use kvlane_loadtest::calibrate::{Residuals, calibrate as fitted, read};

/// An engine's step log is a JSON object a line, with `batch`, `context_tokens`, `prefill_tokens` and `ms`; `prefill_pairs`
/// and `graph` are used where they are there.
#[derive(Debug, clap::Args)]
pub(crate) struct Calibrate {
    /// Step logs, or - for standard input
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// What the calibration is called
    #[arg(long)]
    name: String,
    /// Sequences the engine takes at a time [default: the most that were seen]
    #[arg(long)]
    slots: Option<usize>,
    /// Tokens one of its steps may carry [default: the most that were seen]
    #[arg(long)]
    step_tokens: Option<usize>,
    #[arg(long, default_value_t = 32)]
    block_tokens: usize,
    /// Blocks of its KV cache
    #[arg(long)]
    kv_blocks: usize,
    /// Whether it admits a request only when the whole answer will fit
    #[arg(long)]
    reserve_output: bool,
    /// Steps by which it hands tokens out late
    #[arg(long, default_value_t = 0.0)]
    lag_steps: f64,
    /// Milliseconds between client and engine, there and back, where they are to be simulated as well
    #[arg(long, value_name = "MS,MS")]
    outside: Option<String>,
    /// Prompts and weights take their times one after the other, rather than the longer of both
    #[arg(long)]
    linear: bool,
    /// Where it goes, for `simulate --engine FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Prints the residuals as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn calibrate(arguments: &Calibrate) -> anyhow::Result<()> {
    let mut steps = Vec::new();
    for path in &arguments.logs {
        let name = path.display().to_string();
        if name == "-" {
            steps.extend(read("standard input", stdin().lock())?);
        } else {
            let file = std::fs::File::open(path).with_context(|| name.clone())?;
            steps.extend(read(&name, BufReader::new(file))?);
        }
    }
    let most = |size: fn(&kvlane_loadtest::calibrate::Step) -> usize| {
        steps.iter().map(size).max().unwrap_or(1).max(1)
    };
    let base = Calibration {
        name: arguments.name.clone(),
        max_batch: arguments.slots.unwrap_or_else(|| most(|step| step.work.batch)),
        max_num_tokens: arguments
            .step_tokens
            .unwrap_or_else(|| most(|step| step.work.batch + step.work.prefill)),
        block_tokens: arguments.block_tokens,
        kv_blocks: arguments.kv_blocks,
        reserve_output: arguments.reserve_output,
        lag_steps: arguments.lag_steps,
        weights_ms: 0.0,
        kv_ns_per_token: 0.0,
        eager_ms: 0.0,
        graph_max: 0,
        graph_sizes: Vec::new(),
        prefill_us_per_token: 0.0,
        roofline: !arguments.linear,
        attention_ps_per_pair: 0.0,
        launch_ms: 0.0,
        speculation: None,
        outside: outside(arguments.outside.as_deref())?,
    };
    base.validate()?;
    let calibration = fitted(&base, &steps);
    calibration.validate()?;
    let residuals = Residuals::of(&calibration, &steps);
    let other_form = fitted(&Calibration { roofline: arguments.linear, ..base }, &steps);
    let other = Residuals::of(&other_form, &steps);
    let text = toml::to_string(&calibration)?;
    super::say(&if arguments.json {
        serde_json::to_string_pretty(&residuals)?
    } else {
        let mut said = table(&residuals);
        let form = if arguments.linear { "roofline" } else { "linear" };
        let _ = writeln!(said, "the {form} form would be off by {:.1} %", other.error_pct);
        format!("{said}\n{text}")
    });
    if let Some(path) = &arguments.out {
        let about = format!(
            "# Fitted to {} steps of a real engine; off by {:.1} % a step, {:+.1} % in all.\n",
            residuals.steps, residuals.error_pct, residuals.total_off_pct
        );
        std::fs::write(path, about + &text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn outside(text: Option<&str>) -> anyhow::Result<OutsideDelay> {
    let Some(text) = text else { return Ok(OutsideDelay::default()) };
    let parsed =
        text.split_once(',').and_then(|(there, back)| Some((there.parse().ok()?, back.parse().ok()?)));
    let (request_ms, response_ms) = parsed.with_context(|| {
        format!("--outside is {text:?}, expected two numbers of milliseconds, such as 2,1")
    })?;
    Ok(OutsideDelay { enabled: true, request_ms, response_ms, ..OutsideDelay::default() })
}

fn table(residuals: &Residuals) -> String {
    let mut text = format!(
        "{} steps; off by {:.1} % a step, {:+.1} % in all\n{:<28} {:>8} {:>12} {:>10} {:>9}\n",
        residuals.steps,
        residuals.error_pct,
        residuals.total_off_pct,
        "step",
        "count",
        "measured ms",
        "model ms",
        "off by %",
    );
    for group in &residuals.groups {
        let last = if group.to == usize::MAX { "or more".to_owned() } else { format!("to {}", group.to - 1) };
        let what = if group.prefills { "tokens prefilled" } else { "decoded" };
        let name = format!("{} {last} {what}", group.from);
        let _ = writeln!(
            text,
            "{name:<28} {:>8} {:>12.2} {:>10.2} {:>9.1}",
            group.steps, group.measured_ms, group.model_ms, group.error_pct
        );
    }
    text
}
